package api_test

import (
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/api/client"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// newRevocable returns a server whose one key ends with revoke.
func newRevocable(t *testing.T) (d *terminalServer, revoke func()) {
	p := openLocal(t)
	t.Cleanup(func() { p.Close() })
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	var revoked atomic.Bool
	opts := api.Options{Verify: func(context.Context, string) (auth.Account, error) {
		if revoked.Load() {
			return auth.Account{}, atoll.Errorf("", "", atoll.ErrDenied, "unknown token")
		}
		return auth.Account{Key: "key"}, nil
	}}
	api.VerifyEvery(&opts, 10*time.Millisecond)
	h, err := api.NewHandler(p, opts)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	t.Cleanup(func() { h.Close() })
	return &terminalServer{sb: sb, handler: h, server: server}, func() { revoked.Store(true) }
}

// An onWrite calls itself at each write.
type onWrite func()

func (f onWrite) Write(b []byte) (int, error) {
	f()
	return len(b), nil
}

// Each request in progress whose key is revoked ends with that reason: a client that read "unavailable" would
// try again for ever.
func TestRevocationIsReported(t *testing.T) {
	for name, follow := range map[string]func(ctx context.Context, p atoll.Provider, sb atoll.Sandbox, begun func()) error{
		"watch": func(ctx context.Context, p atoll.Provider, _ atoll.Sandbox, begun func()) error {
			for e, err := range p.Watch(ctx) {
				if err != nil {
					return err
				}
				if e.Type == atoll.EventSynced {
					begun()
				}
			}
			return nil
		},
		"watch of files": func(ctx context.Context, _ atoll.Provider, sb atoll.Sandbox, begun func()) error {
			time.AfterFunc(50*time.Millisecond, begun) // usually it watches by then
			for _, err := range atoll.Files(sb).Watch(ctx, ".", true) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"wait": func(ctx context.Context, _ atoll.Provider, sb atoll.Sandbox, begun func()) error {
			p, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sleep", "1000"}})
			if err != nil {
				return err
			}
			begun()
			_, err = p.Wait(ctx)
			return err
		},
		"output": func(ctx context.Context, _ atoll.Provider, sb atoll.Sandbox, begun func()) error {
			p, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sh", "-c", "echo begun; exec sleep 1000"}, Stdout: onWrite(begun)})
			if err != nil {
				return err
			}
			_, err = p.Wait(ctx)
			return err
		},
		"attach": func(ctx context.Context, _ atoll.Provider, sb atoll.Sandbox, begun func()) error {
			p, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sh", "-c", "echo begun; exec sleep 1000"}})
			if err != nil {
				return err
			}
			in, out := io.Pipe()
			defer out.Close()
			return p.Attach(ctx, &atoll.Attachment{Stdin: in, Stdout: onWrite(begun)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, revoke := newRevocable(t)
			c, err := client.New(t.Context(), client.Options{URL: d.server.URL, Token: "token"})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			sb, err := c.Get(t.Context(), d.sb.ID())
			if err != nil {
				t.Fatal(err)
			}
			err = follow(t.Context(), c, sb, revoke)
			if !errors.Is(err, atoll.ErrDenied) {
				t.Errorf("got %v, want that the key was revoked", err)
			}
			t.Log(err)
		})
	}
}

// The server hangs up on a terminal whose key is revoked, and reports the reason.
func TestTerminalHangUpOnRevocation(t *testing.T) {
	d, revoke := newRevocable(t)
	s := d.openTerminal(t, nil)
	s.typeText("echo be''gun\r")
	s.awaitOutput("begun")
	process := d.findProcess(t, s.process)
	revoke()
	if m := s.nextText(); m["type"] != "error" || m["kind"] != "denied" {
		t.Errorf("the last message is %v", m)
	}
	wantHangUp(t, process)
}
