package api

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/client"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
	"github.com/seed46cd37a8/atoll/server/auth"
)

func TestSocketModeAndRemoval(t *testing.T) {
	for name, path := range map[string]string{
		"short": filepath.Join(t.TempDir(), "s"),
		"long":  filepath.Join(t.TempDir(), strings.Repeat("d", 100), strings.Repeat("s", 60)),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		l, err := Listen(t.Context(), "unix://"+path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		fi, err := os.Stat(path)
		if err != nil || fi.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%s: mode %v, %v", name, fi.Mode(), err)
		}
		if l.Addr().String() != path {
			t.Errorf("%s: address %s", name, l.Addr())
		}
		if _, err := Listen(t.Context(), "unix://"+path); !errors.Is(err, atoll.ErrAlreadyExists) {
			t.Errorf("%s: a second listener: %v", name, err)
		}
		h, err := NewHandler(newFake(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- Serve(ctx, h, l) }()
		c, err := client.New(t.Context(), client.Options{URL: "unix://" + path})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else {
			c.Close()
		}
		cancel()
		if err := <-served; err != nil {
			t.Errorf("%s: Serve: %v", name, err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the socket is left: %v", name, err)
		}
	}
}

func TestListenReplacesStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	l, err := Listen(t.Context(), "unix://"+path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := Listen(t.Context(), "unix://"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the first listener deleted the second one's socket: %v", err)
	}
}

func TestListenDoesNotReplaceFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), "unix://"+path); !errors.Is(err, atoll.ErrAlreadyExists) {
		t.Errorf("Listen: %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "mine" {
		t.Errorf("the file holds %q", b)
	}
}

func TestListenErrors(t *testing.T) {
	for addr, want := range map[string]atoll.Kind{
		"":                      atoll.ErrInvalid,
		"/path":                 atoll.ErrInvalid,
		"unix://relative/path":  atoll.ErrInvalid,
		"http://localhost:80":   atoll.ErrInvalid,
		"tcp://127.0.0.1:80/x":  atoll.ErrInvalid,
		"unix:///no/such/dir/s": atoll.ErrUnavailable,
		"tcp://256.0.0.1:80":    atoll.ErrUnavailable,
	} {
		l, err := Listen(t.Context(), addr)
		if atoll.KindOf(err) != want {
			t.Errorf("Listen(%q) = %v, want kind %s", addr, err, want)
		}
		if err == nil {
			l.Close()
		}
	}
}

func TestTCPNeedsAToken(t *testing.T) {
	l, err := Listen(t.Context(), "tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h, err := NewHandler(newFake(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), h, l); !errors.Is(err, atoll.ErrDenied) {
		t.Errorf("Serve without a token: %v", err)
	}
	checkClosed(t, l)
	if l, err = Listen(t.Context(), "tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	token := NewToken()
	if h, err = NewHandler(newFake(), Options{Tokens: map[string]auth.Account{token: {}}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	pipe := NewPipe()
	go func() { served <- Serve(ctx, h, l, pipe) }()
	for _, opts := range []client.Options{
		{URL: "http://" + l.Addr().String(), Token: token},
		{Dial: pipe.Dial, Token: token},
	} {
		c, err := client.New(t.Context(), opts)
		if err != nil {
			t.Error(err)
			continue
		}
		c.Close()
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestServeLetsRequestsFinish(t *testing.T) {
	f := newFake()
	h, err := NewHandler(f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.list = func(context.Context, atoll.Filter) ([]atoll.Status, error) {
		cancel()
		<-h.ctx.Done() // the shutdown has begun
		return nil, nil
	}
	pipe := NewPipe()
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, h, pipe) }()
	c, err := client.New(t.Context(), client.Options{Dial: pipe.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.List(t.Context(), atoll.Filter{}); err != nil {
		t.Errorf("List during the shutdown: %v", err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestServeWaitsForCancelledRequests tests the shutdown with requests that take longer than
// shutdownGrace.
func TestServeWaitsForCancelledRequests(t *testing.T) {
	for _, tt := range []struct {
		name string
		undo time.Duration // time that the call takes to end after it was cancelled
		late bool
	}{
		{"at once", 0, false},
		{"as long as it may take", wire.DiscardTimeout, false},
		{"not for ever", time.Hour, true},
	} {
		for _, what := range []string{"Create", "Write"} {
			t.Run(tt.name+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake()
					begun, over := make(chan struct{}), make(chan struct{})
					stuck := readerFunc(func([]byte) (int, error) { <-over; return 0, io.EOF })
					defer close(over)
					var ended atomic.Bool
					call := func(ctx context.Context) error {
						<-ctx.Done()
						time.Sleep(tt.undo)
						ended.Store(true)
						return ctx.Err()
					}
					f.create = func(ctx context.Context, _ *atoll.Spec) (atoll.Sandbox, error) {
						close(begun)
						return nil, call(ctx)
					}
					f.box.fs = writingFS{write: func(ctx context.Context, r io.Reader) error {
						close(begun)
						_, err := r.Read(make([]byte, 1)) // fails when the connection is closed
						return errors.Join(err, call(ctx))
					}}
					h, err := NewHandler(f, Options{})
					if err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithCancel(t.Context())
					pipe := NewPipe()
					served := make(chan error, 1)
					go func() { served <- Serve(ctx, h, pipe) }()
					c, err := client.New(t.Context(), client.Options{Dial: pipe.Dial, Info: &f.info})
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					answered := make(chan error, 1)
					go func() {
						if what == "Create" {
							_, err := c.Create(t.Context(), &atoll.Spec{})
							answered <- err
							return
						}
						_, err := atoll.Files(c.Sandbox(fakeID)).Write(t.Context(), "f", stuck, atoll.WriteOptions{})
						answered <- err
					}()
					<-begun
					cancel()
					err = <-served
					if tt.late != errors.Is(err, atoll.ErrTimeout) || !tt.late && err != nil || ended.Load() == tt.late {
						t.Errorf("Serve: %v; the call has ended: %v", err, ended.Load())
					}
					if err := <-answered; !errors.Is(err, atoll.ErrUnavailable) {
						t.Errorf("%s: %v, want %q", what, err, atoll.ErrUnavailable)
					}
					time.Sleep(tt.undo) // no call may outlive the test
				})
			})
		}
	}
}

// A writingFS is an FS that can only write.
type writingFS struct {
	atoll.FS
	write func(ctx context.Context, r io.Reader) error
}

func (f writingFS) Write(ctx context.Context, _ string, r io.Reader, _ atoll.WriteOptions) (atoll.FileInfo, error) {
	return atoll.FileInfo{}, f.write(ctx, r)
}

func TestRefusedListenersAreClosed(t *testing.T) {
	h, err := NewHandler(newFake(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	ls := []net.Listener{listenLoopback(t), listenLoopback(t), listenLoopback(t)}
	if err := Serve(t.Context(), h, ls...); !errors.Is(err, atoll.ErrDenied) {
		t.Errorf("Serve without a token: %v", err)
	}
	for _, l := range ls {
		checkClosed(t, l)
	}
}

// checkClosed checks that a TCP listener has closed. Another one may have its port by now.
func checkClosed(t *testing.T, l net.Listener) {
	t.Helper()
	if err := l.(*net.TCPListener).SetDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener at %s is still open: %v", l.Addr(), err)
	}
}

func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	token, made, err := LoadToken(path)
	if err != nil || !made || len(token) != 43 {
		t.Fatalf("LoadToken = %q, %v, %v", token, made, err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	again, made, err := LoadToken(path)
	if err != nil || made || again != token {
		t.Errorf("LoadToken = %q, %v, %v; want %q again", again, made, err, token)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("%v is left", left)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, _, err := LoadToken(path); !errors.Is(err, atoll.ErrDenied) || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a token that others may read: %v", err)
	}
	if err := errors.Join(os.Truncate(path, 0), os.Chmod(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := LoadToken(path); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("an empty token: %v", err)
	}
	if _, _, err := LoadToken("/no/such/dir/token"); !errors.Is(err, atoll.ErrInternal) {
		t.Errorf("no directory: %v", err)
	}
}

func TestPipe(t *testing.T) {
	nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
		a, b = newPipeConns()
		return a, b, func() { a.Close(); b.Close() }, nil
	})
}

func TestPipeClose(t *testing.T) {
	p := NewPipe()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Dial(ctx); err != context.Canceled {
		t.Errorf("Dial: %v", err)
	}
	p.Close()
	p.Close()
	if _, err := p.Dial(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Dial: %v", err)
	}
	if _, err := p.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
}
