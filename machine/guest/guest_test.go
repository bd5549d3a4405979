package guest

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/server/api"
)

const id = "0123456789abcdef0123456789abcdef"

// connect returns the sandbox of a guest that runs in this process, with dir as
// its work directory.
func connect(t *testing.T, dir string) *Client {
	t.Helper()
	host, inside := bothEnds(t)
	served := make(chan error, 1)
	go func() { served <- Serve(inside, dirfs.Options{Workdir: dir, UID: -1, GID: -1}) }()
	g, err := Connect(t.Context(), host, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return g
}

// bothEnds returns both ends of a connection.
func bothEnds(t *testing.T) (host, inside net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if host, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if inside, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return host, inside
}

func TestErrorsNameTheSandbox(t *testing.T) {
	ctx := t.Context()
	sb := connect(t, t.TempDir()).Sandbox()
	if sb.ID() != id {
		t.Errorf("ID = %q, want %q", sb.ID(), id)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	for _, tt := range []struct {
		name string
		call func() error
		kind atoll.Kind
	}{
		{"dial", func() error { _, err := atoll.Dial(ctx, sb, port); return err }, atoll.ErrUnavailable},
		{"dial no port", func() error { _, err := atoll.Dial(ctx, sb, -1); return err }, atoll.ErrInvalid},
		{"exec", func() error { _, err := sb.Exec(ctx, &atoll.Command{Args: []string{"true"}}); return err }, atoll.ErrUnsupported},
		{"stop", func() error { return sb.Stop(ctx, time.Second) }, atoll.ErrUnsupported},
		{"remove", func() error { return sb.Remove(ctx) }, atoll.ErrUnsupported},
		{"pause", func() error { return atoll.Pause(ctx, sb) }, atoll.ErrUnsupported},
	} {
		err := tt.call()
		e, ok := err.(*atoll.Error)
		if !ok || e.ID != id || e.Kind != tt.kind {
			t.Errorf("%s: %v (%#v), want kind %q of sandbox %s", tt.name, err, err, tt.kind, id)
		}
		if strings.Contains(err.Error(), "0000000000") {
			t.Errorf("%s: %v: names another sandbox", tt.name, err)
		}
	}
	if st, err := sb.Status(ctx); err != nil || st.ID != id || st.State != atoll.StateRunning {
		t.Errorf("Status: %+v, %v; want %s running", st, err, id)
	}
}

// A late connection returns from a Write a while after all of it was read.
type late struct{ net.Conn }

func (c late) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	time.Sleep(200 * time.Millisecond)
	return n, err
}

// TestLastAnswer checks that a guest answers a request that ends it, even if the guest is gone
// before the caller knows that the request was sent.
func TestLastAnswer(t *testing.T) {
	host, inside := bothEnds(t)
	handler, err := api.NewHandler(system{dirfs.System(dirfs.Options{Workdir: t.TempDir(), UID: -1, GID: -1})}, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- serveConn(ctx, inside, 0, handler, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handler.ServeHTTP(w, r)
			end()
		}))
	}()
	g, err := Connect(ctx, late{host}, id)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := g.Sandbox().Status(t.Context()); err != nil {
		t.Errorf("the last request: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
	if _, err := g.Sandbox().Status(t.Context()); atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("a request after the last: %v, want %q", err, atoll.ErrUnavailable)
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	sb := connect(t, dir).Sandbox()
	if err := atoll.WriteFile(t.Context(), sb, "a/b", []byte("hello"), 0o640); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "a", "b")); err != nil || string(got) != "hello" {
		t.Errorf("on disk: %q, %v", got, err)
	}
	if got, err := atoll.ReadFile(t.Context(), sb, filepath.Join(dir, "a/b")); err != nil || string(got) != "hello" {
		t.Errorf("ReadFile: %q, %v", got, err)
	}
	_, err := atoll.ReadFile(t.Context(), sb, "nothing")
	if atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("ReadFile of a file that is not there: %v, want %q", err, atoll.ErrNotExist)
	}
}

// TestDialHalfClose holds what programs that speak in turns need: the end of
// what one side sends does not end what the other one does.
func TestDialHalfClose(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go echo(l)
	sb := connect(t, t.TempDir()).Sandbox()
	c, err := atoll.Dial(t.Context(), sb, l.Addr().(*net.TCPAddr).Port)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("to and fro")); err != nil {
		t.Fatal(err)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 64)
	n := 0
	for {
		m, err := c.Read(got[n:])
		if n += m; err != nil {
			break
		}
	}
	if string(got[:n]) != "to and fro" {
		t.Errorf("came back: %q", got[:n])
	}
}

// Root in the sandbox can stop a guest: callers that wait for it can give up.
func TestNobodyAnswers(t *testing.T) {
	host, inside := bothEnds(t)
	defer inside.Close()
	g, err := Connect(t.Context(), host, id)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for what, do := range map[string]func(context.Context) error{
		"Dial": func(ctx context.Context) error { _, err := atoll.Dial(ctx, g.Sandbox(), 80); return err },
		"Stat": func(ctx context.Context) error { _, err := atoll.Files(g.Sandbox()).Stat(ctx, "f"); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		begin := time.Now()
		err := do(ctx)
		cancel()
		if took := time.Since(begin); err == nil || took > testenv.Scale(10*time.Second) {
			t.Errorf("%s of a guest that does not answer: %v, after %v", what, err, took)
		}
	}
}

func TestClosed(t *testing.T) {
	host, inside := bothEnds(t)
	served := make(chan error, 1)
	go func() { served <- Serve(inside, dirfs.Options{Workdir: t.TempDir(), UID: -1, GID: -1}) }()
	g, err := Connect(t.Context(), host, id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Sandbox().Status(t.Context()); err != nil || g.Closed() {
		t.Fatalf("Status: %v; closed %v", err, g.Closed())
	}
	inside.Close() // the guest was killed
	<-served
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(10*time.Second))
	defer cancel()
	if _, err := g.Sandbox().Status(ctx); atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("Status: %v, want %q", err, atoll.ErrUnavailable)
	}
	if !g.Closed() {
		t.Error("Closed is false")
	}
	_ = g.Close()
}

// echo sends back all that it receives, and ends when its peer does.
func echo(l net.Listener) {
	c, err := l.Accept()
	if err != nil {
		return
	}
	defer c.Close()
	buf := make([]byte, 1024)
	var all []byte
	for {
		n, err := c.Read(buf)
		all = append(all, buf[:n]...)
		if err != nil {
			break
		}
	}
	_, _ = c.Write(all)
}
