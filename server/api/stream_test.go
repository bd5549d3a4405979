package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/server/api/client"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

// A rig is a client of a handler of a fake provider.
type rig struct {
	*fake
	handler *Handler
	server  *httptest.Server
	client  *client.Client
	sb      atoll.Sandbox
}

func newRig(t *testing.T, opts Options) *rig {
	t.Helper()
	r := &rig{fake: newFake()}
	var err error
	if r.handler, err = NewHandler(r.fake, opts); err != nil {
		t.Fatal(err)
	}
	r.server = newServer(t, r.handler)
	t.Cleanup(func() { r.handler.Close() })
	var token string
	for token = range opts.Tokens {
	}
	if r.client, err = client.New(t.Context(), client.Options{URL: r.server.URL, Token: token}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.client.Close() })
	if r.sb, err = r.client.Get(t.Context(), fakeID); err != nil {
		t.Fatal(err)
	}
	return r
}

// newServer serves h until the test ends.
func newServer(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server
}

// findProcess returns the process of the fake with the given id.
func (r *rig) findProcess(t *testing.T, id string) *fakeProc {
	t.Helper()
	p, err := r.box.Process(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return p.(*fakeProc)
}

// eventually polls until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testenv.Scale(30 * time.Second)); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("timeout: %s", what)
}

// finishesSoon fails the test if f takes long.
func finishesSoon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(testenv.Scale(10 * time.Second)):
		t.Fatalf("%s takes too long", what)
	}
}

func TestExecStreams(t *testing.T) {
	r := newRig(t, Options{})
	binary := make([]byte, 3<<20)
	for i := range binary {
		binary[i] = byte(rand.Uint32())
	}
	var out bytes.Buffer
	if err := atoll.Run(t.Context(), r.sb, &atoll.Command{Args: []string{"cat"}, Stdin: bytes.NewReader(binary), Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), binary) {
		t.Errorf("%d bytes came back differently from the %d sent", out.Len(), len(binary))
	}
	res, err := atoll.Capture(t.Context(), r.sb, &atoll.Command{Args: []string{"err", "oh"}}, 0)
	if err != nil || res.Code != 1 || string(res.Stderr) != "oh" || len(res.Stdout) != 0 {
		t.Errorf("Capture = %+v, %v", res, err)
	}
	for _, stream := range []bool{true, false} {
		cmd := &atoll.Command{Args: []string{"exit", "7"}}
		if stream {
			cmd.Stdout = &out
		}
		p, err := r.sb.Exec(t.Context(), cmd)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 7 {
				t.Errorf("Wait = %v, %v; want 7", exit, err)
			}
		}
	}
}

func TestExecWithOneWriterForBoth(t *testing.T) {
	r := newRig(t, Options{})
	commands["both"] = func(_ context.Context, _ *fakeProc, _ []string, _ io.Reader, out, errOut io.Writer) int {
		for range 100 {
			io.WriteString(out, "o")
			io.WriteString(errOut, "e")
		}
		return 0
	}
	defer delete(commands, "both")
	var both bytes.Buffer
	if err := atoll.Run(t.Context(), r.sb, &atoll.Command{Args: []string{"both"}, Stdout: &both, Stderr: &both}); err != nil {
		t.Fatal(err)
	}
	if want := strings.Repeat("oe", 100); both.String() != want {
		t.Errorf("got %q, want the order in which it was written", both.String())
	}
}

func TestExecErrors(t *testing.T) {
	r := newRig(t, Options{})
	for _, c := range []struct {
		args []string
		want error
	}{
		{[]string{"nope"}, atoll.ErrExecFailed},
		{[]string{"nope"}, atoll.ErrCommandNotFound},
		{nil, atoll.ErrInvalid},
		{[]string{"\xff"}, atoll.ErrInvalid},
	} {
		for _, w := range []io.Writer{nil, io.Discard} {
			_, err := r.sb.Exec(t.Context(), &atoll.Command{Args: c.args, Stdout: w})
			if !errors.Is(err, c.want) {
				t.Errorf("Exec(%q) = %v, want %v", c.args, err, c.want)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.sb.Exec(ctx, &atoll.Command{Args: []string{"true"}, Stdout: io.Discard}); err != context.Canceled {
		t.Errorf("Exec with an ended context: %v", err)
	}
	gone := r.client.Sandbox(strings.Repeat("f", 32))
	if _, err := gone.Exec(t.Context(), &atoll.Command{Args: []string{"true"}, Stdout: io.Discard}); !errors.Is(err, atoll.ErrNotFound) {
		t.Errorf("Exec in no sandbox: %v", err)
	}
}

// A gateWriter blocks until its gate is opened.
type gateWriter struct {
	open chan struct{}
	n    int
}

func (w *gateWriter) Write(p []byte) (int, error) {
	<-w.open
	w.n += len(p)
	return len(p), nil
}

func TestSlowReaderBlocksProcess(t *testing.T) {
	r := newRig(t, Options{})
	const total = 64 << 20
	w := &gateWriter{open: make(chan struct{})}
	p, err := r.sb.Exec(t.Context(), &atoll.Command{Args: []string{"zeros", "67108864"}, Stdout: w})
	if err != nil {
		t.Fatal(err)
	}
	proc := r.findProcess(t, p.ID())
	wrote := func() int {
		proc.mu.Lock()
		defer proc.mu.Unlock()
		return proc.wrote
	}
	eventually(t, "the window is full", func() bool { return wrote() >= wire.Window-64<<10 })
	for range 50 { // the writer must stay blocked
		time.Sleep(time.Millisecond)
	}
	// The reader has consumed its current chunk, so the writer may send a little more than a window.
	if n := wrote(); n > 2*wire.Window {
		t.Errorf("%d bytes were written without a reader", n)
	}
	close(w.open)
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 || w.n != total {
		t.Errorf("Wait = %v, %v with %d of %d bytes", exit, err, w.n, total)
	}
}

func TestStreamsAreIndependent(t *testing.T) {
	r := newRig(t, Options{})
	commands["full"] = func(_ context.Context, _ *fakeProc, _ []string, _ io.Reader, out, errOut io.Writer) int {
		out.Write(make([]byte, wire.Window)) // the most that can be sent without a reader
		io.WriteString(errOut, "hello")
		return 0
	}
	defer delete(commands, "full")
	w := &gateWriter{open: make(chan struct{})}
	pr, pw := io.Pipe()
	p, err := r.sb.Exec(t.Context(), &atoll.Command{Args: []string{"full"}, Stdout: w, Stderr: pw})
	if err != nil {
		t.Fatal(err)
	}
	finishesSoon(t, "stderr beside a stdout that nobody reads", func() {
		got := make([]byte, 5)
		if _, err := io.ReadFull(pr, got); err != nil || string(got) != "hello" {
			t.Errorf("read %q, %v", got, err)
		}
	})
	close(w.open)
	if _, err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestUnreadInput(t *testing.T) {
	r := newRig(t, Options{})
	endless := readerFunc(func(p []byte) (int, error) { return len(p), nil })
	p, err := r.sb.Exec(t.Context(), &atoll.Command{Args: []string{"sleep"}, Stdin: endless, Stdout: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	finishesSoon(t, "killing a process that does not read its input", func() {
		if err := p.Signal(t.Context(), atoll.SIGKILL); err != nil {
			t.Error(err)
		}
		if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 137 {
			t.Errorf("Wait = %v, %v", exit, err)
		}
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestFailedWriterIsDetached(t *testing.T) {
	r := newRig(t, Options{})
	finishesSoon(t, "a process whose output cannot be written", func() {
		p, err := r.sb.Exec(t.Context(), &atoll.Command{Args: []string{"zeros", "16777216"}, Stdout: failingWriter{}})
		if err != nil {
			t.Error(err)
			return
		}
		// The fake, unlike a provider, reports it to the process.
		if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 141 {
			t.Errorf("Wait = %v, %v", exit, err)
		}
	})
}

func TestProcessOutlivesClient(t *testing.T) {
	r := newRig(t, Options{})
	pr, pw := io.Pipe()
	defer pw.Close()
	p, err := r.sb.Exec(t.Context(), &atoll.Command{Args: []string{"sleep"}, Stdin: pr, Stdout: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	proc := r.findProcess(t, p.ID())
	if err := r.client.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("Wait after Close: %v", err)
	}
	if _, err := r.client.Get(t.Context(), fakeID); !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("Get after Close: %v", err)
	}
	finishesSoon(t, "closing the handler", func() { r.handler.Close() })
	select {
	case <-proc.done:
		t.Error("the process has ended")
	default:
	}
	proc.kill()
}

var closingText = regexp.MustCompile(`^(wait|attach) [0-9a-f]{32}: the server is closing(, process p\d+ may still run)?$`)

// TestClosingServerDetachesClients tests attached clients, also with output that exceeds their
// window.
func TestClosingServerDetachesClients(t *testing.T) {
	r := newRig(t, Options{})
	attached := make(chan struct{}, 3)
	quiet := r.newAttachable(t, func(ctx context.Context, a *atoll.Attachment) error {
		attached <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	loud := r.newAttachable(t, func(_ context.Context, a *atoll.Attachment) error {
		attached <- struct{}{}
		for {
			if _, err := a.Stdout.Write(make([]byte, 100_000)); err != nil {
				return err
			}
		}
	})
	errs := make(chan error, 1)
	go func() { errs <- quiet.Attach(t.Context(), &atoll.Attachment{Stdout: io.Discard}) }()
	var raw []*websocket.Conn
	for _, p := range []atoll.Process{quiet, loud} {
		ws := dialRaw(t, r, "/processes/"+p.ID()+"/attach")
		ws.SetReadLimit(-1)
		rawText(t, ws, `{"type":"attach","stdout":true}`)
		raw = append(raw, ws)
	}
	for range 3 {
		<-attached
	}
	go r.handler.Close()
	finishesSoon(t, "the last message", func() {
		if err := <-errs; !errors.Is(err, atoll.ErrUnavailable) || !closingText.MatchString(err.Error()) {
			t.Errorf("Attach: %v", err)
		}
	})
	for _, ws := range raw {
		expectText(t, ws, `{"type":"error","error":{"kind":"unavailable","message":"the server is closing, process p`)
		expectClose(t, ws, websocket.StatusGoingAway)
	}
	finishesSoon(t, "Close", func() { r.handler.Close() })
}

// TestDeadServerErrorText checks that the error has no texts of libraries.
func TestDeadServerErrorText(t *testing.T) {
	h, err := NewHandler(newFake(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	server := httptest.NewUnstartedServer(h)
	server.Config.ConnState = func(c net.Conn, _ http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		conns[c] = true
	}
	server.Start()
	defer server.Close()
	c, err := client.New(t.Context(), client.Options{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sb := c.Sandbox(fakeID)
	errs := make(chan error, 2)
	for _, w := range []io.Writer{nil, io.Discard} {
		p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sleep"}, Stdout: w})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Signal(context.Background(), atoll.SIGKILL)
		go func() {
			_, err := p.Wait(t.Context())
			errs <- err
		}()
	}
	want := regexp.MustCompile(`^wait [0-9a-f]{32}: the server at ` + server.URL + ` has gone(, process p\d may still run)?$`)
	for range cap(errs) {
		eventually(t, "a Wait ends", func() bool {
			mu.Lock() // net/http may retry
			for c := range conns {
				c.Close()
			}
			mu.Unlock()
			select {
			case err := <-errs:
				if !errors.Is(err, atoll.ErrUnavailable) || !want.MatchString(err.Error()) {
					t.Errorf("Wait: %v, want %s", err, want)
				}
				return true
			default:
				return false
			}
		})
	}
}

func TestLostServerIsUnavailable(t *testing.T) {
	r := newRig(t, Options{})
	var ps []atoll.Process
	for _, w := range []io.Writer{nil, io.Discard} {
		p, err := r.sb.Exec(t.Context(), &atoll.Command{Args: []string{"sleep"}, Stdout: w})
		if err != nil {
			t.Fatal(err)
		}
		defer r.findProcess(t, p.ID()).kill()
		ps = append(ps, p)
	}
	errs := make(chan error, len(ps))
	for _, p := range ps {
		go func() {
			_, err := p.Wait(t.Context())
			errs <- err
		}()
	}
	finishesSoon(t, "noticing that the server has gone", func() {
		r.handler.Close()
		for range ps {
			err := <-errs
			if !errors.Is(err, atoll.ErrUnavailable) || !closingText.MatchString(err.Error()) {
				t.Errorf("Wait: %v, want it to be unavailable because the server is closing", err)
			}
		}
	})
	r.server.Close()
	_, err := r.client.List(t.Context(), atoll.Filter{})
	if !errors.Is(err, atoll.ErrUnavailable) || !strings.Contains(err.Error(), r.server.URL) {
		t.Errorf("List without a server: %v", err)
	}
}

func TestWaitWithAnEndedContext(t *testing.T) {
	r := newRig(t, Options{})
	for _, w := range []io.Writer{nil, io.Discard} {
		p, err := r.sb.Exec(t.Context(), &atoll.Command{Args: []string{"sleep"}, Stdout: w})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if _, err := p.Wait(ctx); err != context.DeadlineExceeded {
			t.Errorf("Wait: %v", err)
		}
		cancel()
		if err := p.Signal(t.Context(), atoll.SIGKILL); err != nil {
			t.Errorf("the process has ended: %v", err)
		}
		if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 137 {
			t.Errorf("Wait = %v, %v", exit, err)
		}
	}
}

// newAttachable returns a process whose Attach is f.
func (r *rig) newAttachable(t *testing.T, f func(ctx context.Context, a *atoll.Attachment) error) atoll.Process {
	t.Helper()
	p, err := r.sb.Exec(t.Context(), &atoll.Command{Args: []string{"sleep"}})
	if err != nil {
		t.Fatal(err)
	}
	proc := r.findProcess(t, p.ID())
	proc.attach = f
	t.Cleanup(proc.kill)
	return p
}

func TestLostClientIsNotLogged(t *testing.T) {
	var log bytes.Buffer // written by the one logged request, which Close waits for
	r := newRig(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	attached := make(chan struct{})
	p := r.newAttachable(t, func(ctx context.Context, a *atoll.Attachment) error {
		close(attached)
		<-ctx.Done()
		return ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-attached
		cancel()
	}()
	if err := p.Attach(ctx, &atoll.Attachment{Stdout: io.Discard}); err != context.Canceled {
		t.Fatalf("Attach: %v", err)
	}
	r.handler.Close()
	if log.Len() > 0 {
		t.Errorf("a disconnected client was logged: %s", &log)
	}
}

func TestAttachGaps(t *testing.T) {
	r := newRig(t, Options{})
	var got []string
	p := r.newAttachable(t, func(_ context.Context, a *atoll.Attachment) error {
		if a.StdoutFrom != 7 || a.StderrFrom != atoll.FromNow || !a.NoFollow || a.Stderr != nil {
			t.Errorf("the provider got %+v", a)
		}
		io.WriteString(a.Stdout, "one")
		a.Gap(atoll.Stdout, 10, 20)
		io.WriteString(a.Stdout, "two")
		a.Gap(atoll.Stdout, 23, 24)
		a.Gap(atoll.Stdout, 25, 26)
		return nil
	})
	w := writerFunc(func(b []byte) (int, error) { got = append(got, string(b)); return len(b), nil })
	err := p.Attach(t.Context(), &atoll.Attachment{
		Stdout: w, StdoutFrom: 7, StderrFrom: atoll.FromNow, NoFollow: true,
		Gap: func(s atoll.Stream, from, to int64) {
			b, _ := json.Marshal([]any{s, from, to})
			got = append(got, string(b))
		},
	})
	want := `one ["stdout",10,20] two ["stdout",23,24] ["stdout",25,26]`
	if err != nil || strings.Join(got, " ") != want {
		t.Errorf("Attach: %v, got %q, want %q", err, got, want)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestAttachEnds(t *testing.T) {
	r := newRig(t, Options{})
	waitForCtx := func(ctx context.Context, a *atoll.Attachment) error {
		if a.Stdout != nil {
			io.WriteString(a.Stdout, "x")
		}
		<-ctx.Done()
		return ctx.Err()
	}
	t.Run("with its context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := r.newAttachable(t, waitForCtx)
		seen := make(chan struct{}, 1)
		w := writerFunc(func(b []byte) (int, error) { seen <- struct{}{}; return len(b), nil })
		go func() { <-seen; cancel() }()
		if err := p.Attach(ctx, &atoll.Attachment{Stdout: w}); err != context.Canceled {
			t.Errorf("Attach: %v", err)
		}
	})
	t.Run("with the error of its writer", func(t *testing.T) {
		err := r.newAttachable(t, waitForCtx).Attach(t.Context(), &atoll.Attachment{Stdout: failingWriter{}})
		if err == nil || err.Error() != "disk full" {
			t.Errorf("Attach: %v", err)
		}
	})
	t.Run("with the error of the provider", func(t *testing.T) {
		p := r.newAttachable(t, func(context.Context, *atoll.Attachment) error {
			return atoll.Errorf("attach", "x", atoll.ErrInvalid, "no such offset")
		})
		if err := p.Attach(t.Context(), &atoll.Attachment{Stdout: io.Discard}); !errors.Is(err, atoll.ErrInvalid) {
			t.Errorf("Attach: %v", err)
		}
	})
	t.Run("when the client is closed", func(t *testing.T) {
		p := r.newAttachable(t, waitForCtx)
		w := writerFunc(func(b []byte) (int, error) { go r.client.Close(); return len(b), nil })
		if err := p.Attach(t.Context(), &atoll.Attachment{Stdout: w}); !errors.Is(err, atoll.ErrUnavailable) {
			t.Errorf("Attach: %v", err)
		}
	})
}

func TestAttachSendsInput(t *testing.T) {
	r := newRig(t, Options{})
	for _, c := range []struct {
		in      io.Reader
		text    string
		want    error
		aborted bool
	}{
		{strings.NewReader("typed"), "typed", io.EOF, false},
		{io.MultiReader(strings.NewReader("typed"), readerFunc(func([]byte) (int, error) { return 0, errors.New("broken") })), "typed", io.ErrUnexpectedEOF, true},
	} {
		var text []byte
		var end error
		p := r.newAttachable(t, func(_ context.Context, a *atoll.Attachment) error {
			buf := make([]byte, 100)
			for {
				n, err := a.Stdin.Read(buf)
				text = append(text, buf[:n]...)
				if err != nil {
					end = err
					return nil
				}
			}
		})
		if err := p.Attach(t.Context(), &atoll.Attachment{Stdin: c.in}); err != nil {
			t.Errorf("Attach: %v", err)
		}
		if string(text) != c.text || end != c.want {
			t.Errorf("the process read %q, then %v; want %q, %v", text, end, c.text, c.want)
		}
	}
}

func TestSignalAndResize(t *testing.T) {
	r := newRig(t, Options{})
	p := r.newAttachable(t, nil)
	if err := p.Signal(t.Context(), atoll.Signal(34)); err != nil {
		t.Error(err)
	}
	if err := atoll.Resize(t.Context(), p, atoll.Size{Rows: 5, Cols: 6}); err != nil {
		t.Error(err)
	}
	if err := p.Signal(t.Context(), 0); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("Signal(0): %v", err)
	}
	proc := r.findProcess(t, p.ID())
	if len(proc.signals) != 1 || proc.signals[0] != 34 || len(proc.sizes) != 1 || proc.sizes[0].Cols != 6 {
		t.Errorf("signals %v, sizes %v", proc.signals, proc.sizes)
	}
}

// dialRaw opens a WebSocket without a Client.
func dialRaw(t *testing.T, r *rig, path string) *websocket.Conn {
	t.Helper()
	ws, _ := dialWithHeader(t, r, path, nil)
	return ws
}

// dialWithHeader is dialRaw with the header of the request. It also returns the one of the response.
func dialWithHeader(t *testing.T, r *rig, path string, h http.Header) (*websocket.Conn, http.Header) {
	t.Helper()
	ws, resp, err := websocket.Dial(t.Context(), r.server.URL+"/v1/sandboxes/"+fakeID+path, &websocket.DialOptions{HTTPHeader: h})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ws.CloseNow() })
	return ws, resp.Header
}

// The first message may come with the request, and the response says whether it did.
func TestFirstMessageInHeader(t *testing.T) {
	r := newRig(t, Options{})
	ws, h := dialWithHeader(t, r, "/exec", http.Header{wire.FirstHeader: {`{"type":"exec","stdout":true,"command":{"args":["echo","\u00fc"]}}`}})
	if h.Get(wire.FirstHeader) == "" {
		t.Error("the server has not taken it")
	}
	expectText(t, ws, `"type":"started"`)
	if _, h = dialWithHeader(t, r, "/exec", nil); h.Get(wire.FirstHeader) != "" {
		t.Error("the server has taken what it did not get")
	}
	ws, _ = dialWithHeader(t, r, "/exec", http.Header{wire.FirstHeader: {`{"type":"exec","comand":{}}`}})
	expectText(t, ws, `unknown field`)
	expectClose(t, ws, websocket.StatusPolicyViolation)

	header := http.Header{}
	wire.SetFirst(header, wire.Message{Type: wire.MsgExec, Command: &atoll.Command{Args: []string{strings.Repeat("x", 1<<20)}}})
	if header.Get(wire.FirstHeader) != "" {
		t.Error("a large message is in the header")
	}
}

func rawText(t *testing.T, ws *websocket.Conn, text string) {
	t.Helper()
	if err := ws.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// expectText reads messages until a text message that contains want, and returns it.
func expectText(t *testing.T, ws *websocket.Conn, want string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(10*time.Second))
	defer cancel()
	for {
		typ, b, err := ws.Read(ctx)
		if err != nil {
			t.Fatalf("no message with %q: %v", want, err)
		}
		if typ == websocket.MessageText && strings.Contains(string(b), want) {
			return string(b)
		}
	}
}

// expectClose reads to the end of the connection.
func expectClose(t *testing.T, ws *websocket.Conn, want websocket.StatusCode) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(10*time.Second))
	defer cancel()
	for {
		if _, _, err := ws.Read(ctx); err != nil {
			if got := websocket.CloseStatus(err); got != want {
				t.Errorf("the connection ended with %v, want status %v", err, want)
			}
			return
		}
	}
}

func TestMalformedFirstMessage(t *testing.T) {
	r := newRig(t, Options{MaxBody: 4096})
	for name, c := range map[string]struct {
		typ  websocket.MessageType
		data string
		want string
	}{
		"not JSON":         {websocket.MessageText, "hello", "the first message: invalid character"},
		"half of it":       {websocket.MessageText, `{"type":`, "the first message: the JSON ends too early"},
		"unknown field":    {websocket.MessageText, `{"type":"exec","comand":{}}`, `unknown field \"comand\"`},
		"a wrong type":     {websocket.MessageText, `{"type":7}`, "type: must be a string"},
		"no command":       {websocket.MessageText, `{"type":"exec"}`, "must be"},
		"another type":     {websocket.MessageText, `{"type":"attach"}`, "must be"},
		"binary":           {websocket.MessageBinary, "\x00x", "the first message must be text"},
		"nothing":          {websocket.MessageText, "", "the first message is empty"},
		"trailing garbage": {websocket.MessageText, `{"type":"exec","command":{"args":["true"]}} x`, "after the JSON value"},
	} {
		t.Run(name, func(t *testing.T) {
			ws := dialRaw(t, r, "/exec")
			if err := ws.Write(t.Context(), c.typ, []byte(c.data)); err != nil {
				t.Fatal(err)
			}
			answer := expectText(t, ws, c.want)
			if !strings.HasPrefix(answer, `{"type":"error","error":{"kind":"invalid",`) {
				t.Errorf("the answer is %s, want an error of kind invalid", answer)
			}
			expectClose(t, ws, websocket.StatusPolicyViolation)
		})
	}
	t.Run("too long", func(t *testing.T) {
		ws := dialRaw(t, r, "/exec")
		rawText(t, ws, `{"type":"`+strings.Repeat("x", 8000)+`"}`)
		expectClose(t, ws, websocket.StatusMessageTooBig)
	})
}

func TestCommandTooLarge(t *testing.T) {
	r := newRig(t, Options{MaxBody: 4096})
	for _, w := range []io.Writer{nil, io.Discard} {
		_, err := r.sb.Exec(t.Context(), &atoll.Command{Args: []string{"echo", strings.Repeat("x", 8000)}, Stdout: w})
		if !errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), "larger than") {
			t.Errorf("Exec: %v", err)
		}
	}
}

func TestMalformedMessageLeavesProcess(t *testing.T) {
	r := newRig(t, Options{})
	for name, c := range map[string]struct {
		typ  websocket.MessageType
		data []byte
	}{
		"not JSON":                {websocket.MessageText, []byte("{")},
		"no type":                 {websocket.MessageText, []byte("{}")},
		"unknown type":            {websocket.MessageText, []byte(`{"type":"dance"}`)},
		"a second exec":           {websocket.MessageText, []byte(`{"type":"exec","command":{"args":["true"]}}`)},
		"signal without signal":   {websocket.MessageText, []byte(`{"type":"signal"}`)},
		"empty data":              {websocket.MessageBinary, nil},
		"unknown channel":         {websocket.MessageBinary, []byte("\x09x")},
		"a channel of the server": {websocket.MessageBinary, []byte("\x01x")},
		"a window not needed":     {websocket.MessageText, []byte(`{"type":"window","stream":"stdout","bytes":1}`)},
		"a negative window":       {websocket.MessageText, []byte(`{"type":"window","stream":"stdout","bytes":-5}`)},
		"a window of no stream":   {websocket.MessageText, []byte(`{"type":"window","stream":"stdio","bytes":1}`)},
		"close of no stream":      {websocket.MessageText, []byte(`{"type":"close","stream":"stderr"}`)},
	} {
		t.Run(name, func(t *testing.T) {
			ws := dialRaw(t, r, "/exec")
			rawText(t, ws, `{"type":"exec","command":{"args":["sleep"]},"stdin":true,"stdout":true}`)
			expectText(t, ws, `"started"`)
			if err := ws.Write(t.Context(), c.typ, c.data); err != nil {
				t.Fatal(err)
			}
			expectClose(t, ws, websocket.StatusPolicyViolation)
		})
	}
	for id, proc := range r.box.procs {
		select {
		case <-proc.done:
			t.Errorf("process %s has ended", id)
		default:
			proc.kill()
		}
	}
}

func TestWindowViolation(t *testing.T) {
	r := newRig(t, Options{})
	ws := dialRaw(t, r, "/exec")
	rawText(t, ws, `{"type":"exec","command":{"args":["sleep"]},"stdin":true}`)
	expectText(t, ws, `"started"`)
	for range wire.Window/wire.MaxData + 1 {
		if err := ws.Write(t.Context(), websocket.MessageBinary, make([]byte, 1+wire.MaxData)); err != nil {
			break
		}
	}
	expectClose(t, ws, websocket.StatusPolicyViolation)
	r.findProcess(t, "p1").kill()
}

func TestControlMessages(t *testing.T) {
	r := newRig(t, Options{})
	ws := dialRaw(t, r, "/exec")
	rawText(t, ws, `{"type":"exec","command":{"args":["sleep"]},"stdout":true}`)
	expectText(t, ws, `"started"`)
	rawText(t, ws, `{"type":"resize","size":{"rows":3,"cols":4}}`)
	rawText(t, ws, `{"type":"signal","signal":"SIGKILL"}`)
	expectText(t, ws, `{"type":"exit","exit":{"code":137,"duration":"1s"}}`)
	expectClose(t, ws, websocket.StatusNormalClosure)
	if p := r.findProcess(t, "p1"); len(p.sizes) != 1 || p.sizes[0].Rows != 3 {
		t.Errorf("sizes %v", p.sizes)
	}
}

// TestBlockedControl tests a process whose Signal blocks.
func TestBlockedControl(t *testing.T) {
	r := newRig(t, Options{})
	ws := dialRaw(t, r, "/exec")
	rawText(t, ws, `{"type":"exec","command":{"args":["cat"]},"stdin":true,"stdout":true}`)
	expectText(t, ws, `"started"`)
	p := r.findProcess(t, "p1")
	entered, release := make(chan struct{}), make(chan struct{})
	p.signal = func(_ context.Context, sig atoll.Signal) error {
		if sig == atoll.SIGUSR1 {
			close(entered)
			<-release
			return atoll.Errorf("signal", fakeID, atoll.ErrUnavailable, "it was too much")
		}
		return nil
	}
	rawText(t, ws, `{"type":"signal","signal":"SIGUSR1"}`)
	<-entered
	for rows := range 2 * maxControls {
		rawText(t, ws, fmt.Sprintf(`{"type":"resize","size":{"rows":%d,"cols":80}}`, rows))
	}
	rawText(t, ws, `{"type":"signal","signal":"SIGUSR2"}`)
	if err := ws.Write(t.Context(), websocket.MessageBinary, []byte("\x00hello")); err != nil {
		t.Fatal(err)
	}
	if typ, b, err := ws.Read(t.Context()); err != nil || typ != websocket.MessageBinary || string(b) != "\x01hello" {
		t.Fatalf("while a signal hangs: %q, %v", b, err)
	}
	close(release)
	expectText(t, ws, `"refused","error":{"op":"signal","id":"`+fakeID+`","kind":"unavailable","message":"it was too much"`)
	rawText(t, ws, `{"type":"signal","signal":"SIGINT"}`)
	ws.CloseNow() // the server still handles the messages before
	eventually(t, "all orders are carried out", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return slices.Equal(p.signals, []atoll.Signal{atoll.SIGUSR2, atoll.SIGINT})
	})
	if len(p.sizes) != 1 || p.sizes[0].Rows != 2*maxControls-1 {
		t.Errorf("sizes %v, want the last one", p.sizes)
	}
	p.kill()
}

func TestTooManySignals(t *testing.T) {
	r := newRig(t, Options{})
	ws := dialRaw(t, r, "/exec")
	rawText(t, ws, `{"type":"exec","command":{"args":["sleep"]},"stdout":true}`)
	expectText(t, ws, `"started"`)
	p := r.findProcess(t, "p1")
	defer p.kill()
	p.signal = func(ctx context.Context, _ atoll.Signal) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for range maxControls + 2 { // one is in progress
		rawText(t, ws, `{"type":"signal","signal":"SIGUSR1"}`)
	}
	expectClose(t, ws, websocket.StatusPolicyViolation)
}

// TestConcurrentStreams is for the race detector.
func TestConcurrentStreams(t *testing.T) {
	r := newRig(t, Options{})
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			out, err := atoll.Output(t.Context(), r.sb, &atoll.Command{Args: []string{"cat"}, Stdin: strings.NewReader(strings.Repeat("x", 100_000))})
			if err != nil || len(out) != 100_000 {
				t.Errorf("Output: %d bytes, %v", len(out), err)
			}
		})
	}
	wg.Wait()
}

// TestEndedStreamsAreClosed checks that the server closes a hijacked connection, even if the
// provider notices that the client has disconnected before the stream does.
func TestEndedStreamsAreClosed(t *testing.T) {
	r := newRig(t, Options{})
	p := r.newAttachable(t, func(_ context.Context, a *atoll.Attachment) error {
		for {
			if _, err := io.WriteString(a.Stdout, "x"); err != nil {
				return err
			}
		}
	})
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection would close leaked connections
	before := countSockets(t)
	for range 200 {
		if err := p.Attach(t.Context(), &atoll.Attachment{Stdout: failingWriter{}}); err == nil {
			t.Error("Attach succeeded although its writer failed")
		}
	}
	for end := time.Now().Add(testenv.Scale(10 * time.Second)); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if countSockets(t) <= before {
			return
		}
	}
	t.Errorf("%d connections are open, before there were %d", countSockets(t), before)
}

// countSockets returns the number of sockets of this process.
func countSockets(t *testing.T) (n int) {
	t.Helper()
	const fds = "/proc/self/fd"
	entries, err := os.ReadDir(fds)
	if err != nil {
		t.Skip("needs Linux's /proc: ", err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(fds, e.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}
