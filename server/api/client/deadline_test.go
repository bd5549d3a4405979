package client_test

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// A lateContext ends a while after its deadline, as any context can on a busy machine.
type lateContext struct{ context.Context }

func (lateContext) Deadline() (time.Time, bool) { return time.Now(), true }

// A dialer that sees the deadline before the context does makes a call fail with the context's error.
func TestDialerSeesTheDeadlineFirst(t *testing.T) {
	c, err := client.New(t.Context(), client.Options{Info: &atoll.Info{Name: "silent"}, Dial: func(context.Context) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Create(lateContext{ctx}, &atoll.Spec{}); err != context.DeadlineExceeded {
		t.Errorf("Create: %v, want the error of its context", err)
	}
}
