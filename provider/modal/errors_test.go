//go:build linux

package modal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed46cd37a8/atoll"
)

// Errors of the SDK itself have kinds, too.
func TestKindOf(t *testing.T) {
	for err, want := range map[error]atoll.Kind{
		sdk.NotFoundError{}: atoll.ErrNotExist, sdk.AlreadyExistsError{}: atoll.ErrAlreadyExists, sdk.InvalidError{}: atoll.ErrInvalid,
		sdk.RemoteError{}: atoll.ErrUnavailable, sdk.SandboxTimeoutError{}: atoll.ErrUnavailable,
	} {
		if got := kindOf(fmt.Errorf("it says: %w", err)); got != want {
			t.Errorf("%T: %s, want %s", err, got, want)
		}
	}
}

// sandboxOf distinguishes the name of a sandbox's instance from those of others.
func TestSandboxOf(t *testing.T) {
	id := atoll.NewID()
	for name, want := range map[string]string{
		names("a").sandboxName(id): id, names("a").caretakerName(id): "", names("a-b").sandboxName(id): "", names("b").sandboxName(id): "",
		"a-" + strings.ToUpper("a"+id[1:]): "", "a-web": "", "a-": "", "": "",
	} {
		if got := names("a").sandboxOf(name); got != want {
			t.Errorf("sandboxOf(%q) is %q, want %q", name, got, want)
		}
	}
}

// A call whose context ends returns its error, even if the service has seen the deadline a
// moment before.
func TestFailed(t *testing.T) {
	p := &Provider{}
	for _, tt := range []struct {
		what string
		left time.Duration
		code codes.Code
		want error
	}{
		{"it is over", 0, codes.Unavailable, context.DeadlineExceeded},
		{"the service was first", deadlineSlack / 2, codes.Canceled, context.DeadlineExceeded},
		{"the service was first, and says why", deadlineSlack / 2, codes.DeadlineExceeded, context.DeadlineExceeded},
		{"it fails just before", deadlineSlack / 2, codes.ResourceExhausted, atoll.ErrExhausted},
		{"the service has its own limits", time.Hour, codes.DeadlineExceeded, atoll.ErrUnavailable},
		{"the service has given up", time.Hour, codes.Canceled, atoll.ErrUnavailable},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tt.left)
			defer cancel()
			if err := p.wrapError(ctx, "op", "id", status.Error(tt.code, "says so")); !errors.Is(err, tt.want) {
				t.Errorf("%s: %v, want %v", tt.what, err, tt.want)
			}
		})
	}
}
