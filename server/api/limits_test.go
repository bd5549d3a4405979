package api

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/client"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// newEndlessServer returns a client of a server that answers each request with head followed by
// more, without end, and the number of bytes that the server has sent.
func newEndlessServer(t *testing.T, head, more string) (*client.Client, *atomic.Int64) {
	t.Helper()
	pipe := NewPipe()
	t.Cleanup(func() { pipe.Close() })
	var sent atomic.Int64
	go func() {
		for {
			conn, err := pipe.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				req, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				for text := head; ; text = more {
					n, err := io.WriteString(conn, text)
					sent.Add(int64(n))
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	c, err := client.New(t.Context(), client.Options{Dial: pipe.Dial, Info: &atoll.Info{Name: "endless"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, &sent
}

func TestResponseLimits(t *testing.T) {
	const maxHead, maxReply, maxErrorBody = 256 << 10, 1 << 20, 64 << 10 // as in package client
	calls := map[string]func(ctx context.Context, c *client.Client) error{
		"Create": func(ctx context.Context, c *client.Client) error {
			_, err := c.Create(ctx, &atoll.Spec{})
			return err
		},
		"Write": func(ctx context.Context, c *client.Client) error {
			_, err := atoll.Files(c.Sandbox(fakeID)).Write(ctx, "f", strings.NewReader("content"), atoll.WriteOptions{})
			return err
		},
		"Stat": func(ctx context.Context, c *client.Client) error {
			_, err := atoll.Files(c.Sandbox(fakeID)).Stat(ctx, "f")
			return err
		},
		"Dial": func(ctx context.Context, c *client.Client) error {
			_, err := atoll.Dial(ctx, c.Sandbox(fakeID), 80)
			return err
		},
		"Exec": func(ctx context.Context, c *client.Client) error {
			_, err := c.Sandbox(fakeID).Exec(ctx, &atoll.Command{Args: []string{"true"}, Stdout: io.Discard})
			return err
		},
	}
	line := strings.Repeat("x", 4000)
	for _, tt := range []struct {
		name, head, more string
		calls            []string
		kind             atoll.Kind
		most             int64
	}{
		{"headers without end", "HTTP/1.1 200 OK\r\n", "X-Long: " + line + "\r\n", []string{"Create", "Write", "Stat", "Dial", "Exec"}, atoll.ErrUnavailable, maxHead},
		{"a header without end", "HTTP/1.1 200 OK\r\nX: ", line, []string{"Create", "Dial"}, atoll.ErrUnavailable, maxHead},
		{"a body without end", "HTTP/1.1 200 OK\r\n\r\n{\"id\":\"", line, []string{"Create", "Write", "Stat"}, atoll.ErrExhausted, maxReply},
		{"an error without end", "HTTP/1.1 500 Sorry\r\n\r\n", line, []string{"Create", "Write", "Stat", "Dial", "Exec"}, atoll.ErrInternal, maxErrorBody},
	} {
		for _, name := range tt.calls {
			t.Run(tt.name+"/"+name, func(t *testing.T) {
				c, sent := newEndlessServer(t, tt.head, tt.more)
				err := calls[name](t.Context(), c)
				if atoll.KindOf(err) != tt.kind {
					t.Errorf("%v, want kind %q", err, tt.kind)
				}
				if tt.kind != atoll.ErrInternal && !strings.Contains(err.Error(), "larger than") && !strings.Contains(err.Error(), "exceeded") {
					t.Errorf("%v does not say why", err)
				}
				const onItsWay = 4 * pipeSize
				if n := sent.Load(); n > tt.most+onItsWay {
					t.Errorf("%d bytes were taken, want at most about %d", n, tt.most)
				}
			})
		}
	}
}

// TestCreateWaitsForUndo tests Create with servers that take long to undo it.
func TestCreateWaitsForUndo(t *testing.T) {
	for _, tt := range []struct {
		name   string
		undo   time.Duration
		undone bool
	}{
		{"as long as a server may take", wire.DiscardTimeout, true},
		{"and not for ever", time.Hour, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				made, undone := make(chan struct{}), atomic.Bool{}
				f.create = func(ctx context.Context, _ *atoll.Spec) (atoll.Sandbox, error) {
					close(made)
					<-ctx.Done()
					time.Sleep(tt.undo)
					undone.Store(true)
					return nil, ctx.Err()
				}
				h, err := NewHandler(f, Options{})
				if err != nil {
					t.Fatal(err)
				}
				pipe := NewPipe()
				server := http.Server{Handler: h, ReadHeaderTimeout: time.Second}
				go server.Serve(pipe)
				defer h.Close()
				defer server.Close()
				c, err := client.New(t.Context(), client.Options{Dial: pipe.Dial, Info: &f.info})
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				ctx, cancel := context.WithCancel(t.Context())
				go func() { <-made; cancel() }()
				_, err = c.Create(ctx, &atoll.Spec{})
				if !errors.Is(err, context.Canceled) || undone.Load() != tt.undone {
					t.Errorf("Create: %v, undone %v; want %v", err, undone.Load(), tt.undone)
				}
				if says := strings.Contains(err.Error(), "undo"); says == tt.undone {
					t.Errorf("the error is %q", err)
				}
				time.Sleep(tt.undo) // no request may outlive the test
			})
		})
	}
}
