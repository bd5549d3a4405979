package api_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A late provider has its first command begin only when the server that was asked for it
// closes. Where it is told, the caller gets the process; else it does not, though that runs.
type late struct {
	atoll.ProviderLayer
	begun atomic.Bool
	asked chan struct{} // closed when it was
	told  bool
}

func (l *late) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := l.ProviderLayer.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return lateBox{atoll.SandboxLayer{Sandbox: sb}, l}, nil
}

type lateBox struct {
	atoll.SandboxLayer
	l *late
}

func (b lateBox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if b.l.begun.Swap(true) {
		return b.SandboxLayer.Exec(ctx, cmd)
	}
	close(b.l.asked)
	<-ctx.Done()
	lasting := context.WithoutCancel(ctx)
	if b.l.told {
		p, err := b.SandboxLayer.Exec(lasting, cmd)
		for err == nil { // until it has done something
			if _, unread := atoll.ReadFile(lasting, b.SandboxLayer, "times"); unread == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		return p, err
	}
	p, err := b.SandboxLayer.Exec(lasting, &atoll.Command{Args: cmd.Args})
	if err == nil {
		_, err = p.Wait(lasting)
	}
	if err != nil {
		return nil, err
	}
	return nil, ctx.Err()
}

// A command that a server was asked for before it began to close is started once: the client
// goes on with it elsewhere, or is told that it is not known whether it was.
func TestClosingStartsNothingTwice(t *testing.T) {
	for name, told := range map[string]bool{"it is known to run": true, "it is not known": false} {
		t.Run(name, func(t *testing.T) {
			l := &late{ProviderLayer: atoll.ProviderLayer{Provider: openLocal(t)}, asked: make(chan struct{}), told: told}
			t.Cleanup(func() { l.Close() })
			one, two := serveBehind(t, l), serveBehind(t, l)
			c := patient(t, one.url+","+two.url)
			sb, err := c.Create(t.Context(), &atoll.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { sb.Remove(context.WithoutCancel(t.Context()), atoll.RemoveVolumes()) })
			go func() {
				select {
				case <-l.asked:
					one.end()
				case <-t.Context().Done():
				}
			}()
			var out safe
			p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", "echo x >>times; echo done; exit 3"}, Stdout: &out})
			switch {
			case told && err == nil:
				if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 3 || out.b.String() != "done\n" {
					t.Errorf("Wait: %v, %v, printed %q; want 3", exit, err, &out.b)
				}
			case told:
				t.Errorf("Exec: %v", err)
			case atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), "not known"):
				t.Errorf("Exec: %v, want that nothing is known of it", err)
			}
			times, err := atoll.ReadFile(t.Context(), sb, "times")
			if err != nil || string(times) != "x\n" {
				t.Errorf("it has run and written %q, %v; want once", times, err)
			}
		})
	}
}
