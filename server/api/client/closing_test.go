package client_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A lateProvider starts its first command only when the server that called Exec closes. Exec then
// returns the process if returnsProcess is set, and an error although the command ran if not.
type lateProvider struct {
	atoll.ProviderLayer
	started        atomic.Bool
	execCalled     chan struct{} // closed by the first Exec
	returnsProcess bool
}

func (l *lateProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := l.ProviderLayer.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return lateSandbox{atoll.SandboxLayer{Sandbox: sb}, l}, nil
}

type lateSandbox struct {
	atoll.SandboxLayer
	l *lateProvider
}

func (b lateSandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if b.l.started.Swap(true) {
		return b.SandboxLayer.Exec(ctx, cmd)
	}
	called := func() { // when the command runs: its start must not take a part of the server's time to close
		close(b.l.execCalled)
		<-ctx.Done()
	}
	lasting := context.WithoutCancel(ctx)
	if b.l.returnsProcess {
		p, err := b.SandboxLayer.Exec(lasting, cmd)
		for err == nil { // until the command has written its file
			if _, unread := atoll.ReadFile(lasting, b.SandboxLayer, "times"); unread == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		called()
		return p, err
	}
	p, err := b.SandboxLayer.Exec(lasting, &atoll.Command{Args: cmd.Args})
	if err == nil {
		_, err = p.Wait(lasting)
	}
	if called(); err != nil {
		return nil, err
	}
	return nil, ctx.Err()
}

// A command whose Exec is in progress when the server closes starts once: the client continues with
// it at another server, or the error says that the start is unknown.
func TestClosingServerStartsOnce(t *testing.T) {
	for name, told := range map[string]bool{"start known": true, "start unknown": false} {
		t.Run(name, func(t *testing.T) {
			l := &lateProvider{ProviderLayer: atoll.ProviderLayer{Provider: openLocal(t)}, execCalled: make(chan struct{}), returnsProcess: told}
			t.Cleanup(func() { l.Close() })
			one, two := startServer(t, l), startServer(t, l)
			c := newPatientClient(t, one.url+","+two.url)
			sb, err := c.Create(t.Context(), &atoll.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { sb.Remove(context.WithoutCancel(t.Context()), atoll.RemoveVolumes()) })
			go func() {
				select {
				case <-l.execCalled:
					one.stop()
				case <-t.Context().Done():
				}
			}()
			var out syncBuffer
			p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", "echo x >>times; echo done; exit 3"}, Stdout: &out})
			switch {
			case told && err == nil:
				if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 3 || out.b.String() != "done\n" {
					t.Errorf("Wait: %v, %v, printed %q; want 3", exit, err, &out.b)
				}
			case told:
				t.Errorf("Exec: %v", err)
			case atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), "not known"):
				t.Errorf("Exec: %v, want an error that says the start is not known", err)
			}
			times, err := atoll.ReadFile(t.Context(), sb, "times")
			if err != nil || string(times) != "x\n" {
				t.Errorf("the command has written %q, %v; want one line", times, err)
			}
		})
	}
}
