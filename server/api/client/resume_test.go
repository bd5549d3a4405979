package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// A balancer has one address and several servers: it connects each new connection to the first
// server that is up.
type balancer struct {
	net.Listener
	work sync.WaitGroup

	mu      sync.Mutex
	servers []*balancedServer
}

// A balancedServer is a server behind a balancer.
type balancedServer struct {
	url   string
	stop  func()
	down  bool
	conns map[net.Conn]net.Conn
}

// newBalancer serves p with n servers.
func newBalancer(t *testing.T, p atoll.Provider, n int) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{Listener: l}
	for range n {
		b.servers = append(b.servers, startServer(t, p))
	}
	b.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			b.work.Go(func() { b.forwardConn(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		for i := range b.servers {
			b.killServer(i)
		}
		b.work.Wait()
	})
	return b
}

func startServer(t *testing.T, p atoll.Provider) *balancedServer {
	t.Helper()
	s := &balancedServer{url: "unix://" + filepath.Join(t.TempDir(), "s"), conns: map[net.Conn]net.Conn{}}
	l, err := api.Listen(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.NewHandler(p, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- api.Serve(ctx, h, l) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

func (b *balancer) url() string { return "http://" + b.Addr().String() }

// forwardConn copies one connection to and from a server.
func (b *balancer) forwardConn(conn net.Conn) {
	defer conn.Close()
	b.mu.Lock()
	var to *balancedServer
	for _, s := range b.servers {
		if !s.down {
			to = s
			break
		}
	}
	if to == nil {
		b.mu.Unlock()
		return
	}
	far, err := net.Dial("unix", strings.TrimPrefix(to.url, "unix://"))
	if err != nil {
		b.mu.Unlock()
		return
	}
	to.conns[conn] = far
	b.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(far, conn)
		_ = far.(*net.UnixConn).CloseWrite()
	})
	_, _ = io.Copy(conn, far)
	conn.Close()
	far.Close()
	both.Wait()
	b.mu.Lock()
	delete(to.conns, conn)
	b.mu.Unlock()
}

// killServer breaks all connections of a server and sends it no new ones.
func (b *balancer) killServer(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.servers[i]
	s.down = true
	for near, far := range s.conns {
		near.Close()
		far.Close()
	}
	clear(s.conns)
}

// awaitClient waits until a client has connected to a server that is up.
func (b *balancer) awaitClient(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(testenv.Scale(time.Minute)); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		n := 0
		b.mu.Lock()
		for _, s := range b.servers {
			if !s.down {
				n += len(s.conns)
			}
		}
		b.mu.Unlock()
		if n > 0 {
			return
		}
	}
	t.Fatal("no client connects to the other server")
}

// switchServer kills the server that is up, of two, and restores the other one.
func (b *balancer) switchServer() {
	b.mu.Lock()
	live := 0
	if b.servers[0].down {
		live = 1
	}
	b.servers[1-live].down = false
	b.mu.Unlock()
	b.killServer(live)
}

func newPatientClient(t *testing.T, url string) *client.Client {
	t.Helper()
	c, err := client.New(t.Context(), client.Options{URL: url, Patience: testenv.Scale(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func openLocal(t *testing.T) atoll.Provider {
	t.Helper()
	p, err := local.New(local.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// openSandbox creates a sandbox of provider local, and returns it as the handle of a client with
// two servers.
func openSandbox(t *testing.T) (*balancer, *client.Client, atoll.Sandbox) {
	t.Helper()
	p := openLocal(t)
	t.Cleanup(func() { p.Close() })
	b := newBalancer(t, p, 2)
	c := newPatientClient(t, b.url())
	sb, err := c.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sb.Remove(context.WithoutCancel(t.Context()), atoll.RemoveVolumes()) })
	return b, c, sb
}

// A failoverWriter calls switchServer each time that it gets every bytes.
type failoverWriter struct {
	syncBuffer
	every, last  int
	switchServer func()
}

func (w *failoverWriter) Write(p []byte) (int, error) {
	n, err := w.syncBuffer.Write(p)
	if w.b.Len()-w.last >= w.every {
		w.last = w.b.Len()
		w.switchServer()
	}
	return n, err
}

const lines = 400_000

// seqOutput returns the output of "seq" with lines.
func seqOutput() []byte {
	var all bytes.Buffer
	for i := range lines {
		fmt.Fprintln(&all, i+1)
	}
	return all.Bytes()
}

// A client gets complete output in order, and the exit, even if the servers die repeatedly while a
// fast command prints.
func TestExecFailover(t *testing.T) {
	b, _, sb := openSandbox(t)
	out := &failoverWriter{every: 300 << 10, switchServer: b.switchServer}
	var errs bytes.Buffer
	p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", fmt.Sprintf("seq %d; echo done >&2; exit 7", lines)}, Stdout: out, Stderr: &errs})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(t.Context())
	if err != nil || exit.Code != 7 || errs.String() != "done\n" {
		t.Errorf("Wait: %v, %v, stderr %q; want 7", exit, err, &errs)
	}
	if want := seqOutput(); sha256.Sum256(want) != sha256.Sum256(out.b.Bytes()) {
		t.Errorf("got %d bytes that differ from the %d printed bytes", out.b.Len(), len(want))
	}
	if out.last < 5*out.every {
		t.Errorf("the last switch of servers was after %d bytes, too early", out.last)
	}
}

// An attachment gets complete output too, from any offset, and with one writer for both streams.
func TestAttachFailover(t *testing.T) {
	b, _, sb := openSandbox(t)
	script := fmt.Sprintf("until [ -e begin ]; do echo tick; sleep 0.05; done; read x; echo; seq %d", lines)
	p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", script}, OpenStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	whole := &failoverWriter{every: 500 << 10, switchServer: b.switchServer}
	var half syncBuffer
	var reading sync.WaitGroup
	for _, a := range []*atoll.Attachment{{Stdout: whole, Stderr: whole}, {Stdout: &half, StdoutFrom: atoll.FromNow}} {
		reading.Go(func() {
			if err := p.Attach(t.Context(), a); err != nil {
				t.Errorf("Attach: %v", err)
			}
		})
	}
	whole.awaitText(t, "tick")
	half.awaitText(t, "tick")
	if err := atoll.WriteFile(t.Context(), sb, "begin", nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(t.Context(), &atoll.Attachment{Stdin: strings.NewReader("go\n")}); err != nil {
		t.Error(err)
	}
	reading.Wait()
	_, one, _ := bytes.Cut(whole.b.Bytes(), []byte("\n\n"))
	_, other, _ := bytes.Cut(half.b.Bytes(), []byte("\n\n"))
	want := seqOutput()
	for name, got := range map[string][]byte{"from the start": one, "from now": other} {
		if at := firstDifference(got, want); at >= 0 {
			t.Errorf("attached %s: got %d bytes, want %d; they differ at %d", name, len(got), len(want), at)
		}
	}
}

// firstDifference returns the first index at which a and b differ, or -1.
func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	return -1
}

// Wait for a process without streams is repeated at the next server.
func TestWaitFailover(t *testing.T) {
	b, _, sb := openSandbox(t)
	p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", "sleep 1; exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, b.switchServer)
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 3 {
		t.Errorf("Wait: %v, %v; want 3", exit, err)
	}
}

// A syncBuffer is a buffer that is safe for concurrent use.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// awaitText waits until the buffer contains text.
func (s *syncBuffer) awaitText(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(testenv.Scale(time.Minute)); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		has := strings.Contains(s.b.String(), text)
		s.mu.Unlock()
		if has {
			return
		}
	}
	t.Fatalf("the output lacks %q: %q", text, s.b.String())
}

// A terminal continues with the input from before and after the switch.
func TestTerminalFailover(t *testing.T) {
	b, _, sb := openSandbox(t)
	keys, typed := io.Pipe()
	defer typed.Close()
	screen := &syncBuffer{}
	p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh"}, TTY: &atoll.Size{Rows: 24, Cols: 80}, Stdin: keys, Stdout: screen})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		fmt.Fprintf(typed, "echo is$((40+%d))\n", i)
		screen.awaitText(t, fmt.Sprintf("is%d\r\n", 40+i))
		b.switchServer()
		b.awaitClient(t) // input that is sent before the client detects the loss is lost, and ends the stream
	}
	fmt.Fprintln(typed, "exit 5")
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 5 {
		t.Errorf("Wait: %v, %v; want 5", exit, err)
	}
}

// A stream resumes if all its input has arrived. If some has not, or if more would follow, the
// client returns an error.
func TestInputFailover(t *testing.T) {
	b, _, sb := openSandbox(t)
	var out syncBuffer
	p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", "cat; echo .; sleep 1; echo end"}, Stdin: strings.NewReader("all"), Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	out.awaitText(t, "all.")
	b.switchServer()
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 || out.b.String() != "all.\nend\n" {
		t.Errorf("Wait: %v, %v; printed %q", exit, err, &out.b)
	}
	keys, typed := io.Pipe()
	defer typed.Close()
	out = syncBuffer{}
	if p, err = sb.Exec(t.Context(), &atoll.Command{Args: []string{"cat"}, Stdin: keys, Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(typed, "some")
	out.awaitText(t, "some")
	b.switchServer()
	if exit, err := p.Wait(t.Context()); err == nil && exit.Code != 0 || err != nil && !strings.Contains(err.Error(), "stdin has ended with the connection") {
		t.Errorf("Wait: %v, %v; want exit 0 or the error that stdin has ended", exit, err)
	}
}

// A Watch yields each change once.
func TestWatchFailover(t *testing.T) {
	b, c, sb := openSandbox(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := make(chan atoll.Event, 100)
	watched := make(chan error, 1)
	go func() {
		for ev, err := range c.Watch(ctx) {
			if err != nil {
				watched <- err
				return
			}
			events <- ev
		}
	}()
	next := func() string {
		t.Helper()
		select {
		case ev := <-events:
			if ev.Type == atoll.EventSynced {
				return "synced"
			}
			return ev.Status.ID[:4] + " " + string(ev.Status.State)
		case <-time.After(testenv.Scale(time.Minute)):
			t.Fatal("no event")
			return ""
		}
	}
	id := sb.ID()[:4]
	for _, want := range []string{id + " running", "synced"} {
		if got := next(); got != want {
			t.Errorf("the event %q, want %q", got, want)
		}
	}
	for range 3 {
		b.switchServer()
		time.Sleep(300 * time.Millisecond)
	}
	other, err := c.Create(t.Context(), &atoll.Spec{NoStart: true})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := next(), other.ID()[:4]+" created"; got != want { // no event was repeated
		t.Errorf("the event %q, want %q", got, want)
	}
	b.killServer(0)
	b.killServer(1)
	removeDirectly(t, b, other.ID())
	time.Sleep(100 * time.Millisecond)
	b.switchServer()
	if got, want := next(), other.ID()[:4]+" removed"; got != want {
		t.Errorf("the event %q, want %q", got, want)
	}
	cancel()
	if err := <-watched; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch ended with %v", err)
	}
}

// removeDirectly removes a sandbox without the balancer.
func removeDirectly(t *testing.T, b *balancer, id string) {
	t.Helper()
	c, err := client.New(t.Context(), client.Options{URL: b.servers[0].url})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Sandbox(id).Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Fatal(err)
	}
}

// The read of a file resumes unless the file has changed.
func TestReadFailover(t *testing.T) {
	b, _, sb := openSandbox(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	if err := atoll.WriteFile(t.Context(), sb, "f", want, 0); err != nil {
		t.Fatal(err)
	}
	for _, changed := range []bool{false, true} {
		r, _, err := atoll.Files(sb).Read(t.Context(), "f", 0)
		if err != nil {
			t.Fatal(err)
		}
		begin := make([]byte, 1<<20)
		if _, err := io.ReadFull(r, begin); err != nil {
			t.Fatal(err)
		}
		if changed {
			if err := atoll.WriteFile(t.Context(), sb, "f", want[1:], 0); err != nil {
				t.Fatal(err)
			}
		}
		b.switchServer()
		rest, err := io.ReadAll(r)
		switch got := append(begin, rest...); {
		case changed && !errors.Is(err, atoll.ErrUnavailable):
			t.Errorf("read of a changed file: %d bytes, %v; want ErrUnavailable", len(got), err)
		case !changed && (err != nil || !bytes.Equal(got, want)):
			t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
		}
		r.Close()
	}
}

// A server that closes makes its clients use the other servers of their URL, without an error.
func TestClosingServerFailover(t *testing.T) {
	p := openLocal(t)
	t.Cleanup(func() { p.Close() })
	one, two := startServer(t, p), startServer(t, p)
	c := newPatientClient(t, one.url+","+two.url)
	sb, err := c.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Remove(context.WithoutCancel(t.Context()), atoll.RemoveVolumes())
	var out syncBuffer
	streamed, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", "echo one; sleep 1; echo two; exit 4"}, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", "sleep 1; exit 5"}})
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan string, 1)
	go func() {
		exit, err := plain.Wait(context.WithoutCancel(t.Context()))
		waited <- fmt.Sprint(exit.Code, err)
	}()
	out.awaitText(t, "one")
	one.stop()
	for range 20 {
		if _, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"true"}}); err != nil {
			t.Errorf("Exec: %v", err)
		}
	}
	if exit, err := streamed.Wait(t.Context()); err != nil || exit.Code != 4 || out.b.String() != "one\ntwo\n" {
		t.Errorf("Wait: %v, %v, printed %q; want 4", exit, err, &out.b)
	}
	if got := <-waited; got != "5 <nil>" {
		t.Errorf("Wait: %s, want 5", got)
	}
}

// An incompleteProvider has a server that dies during its first Create. The incomplete sandbox
// conflicts with another Create of its id until Get was called a few times.
type incompleteProvider struct {
	atoll.ProviderLayer
	killServer func()

	mu    sync.Mutex
	begun bool
	gets  int
}

func (h *incompleteProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	h.mu.Lock()
	first, conflict := !h.begun, h.begun && h.gets < 3
	h.begun = true
	h.mu.Unlock()
	switch {
	case first:
		h.killServer()
		<-ctx.Done()
		return nil, ctx.Err()
	case conflict:
		return nil, atoll.E("create", spec.ID, atoll.ErrAlreadyExists, nil)
	}
	return h.ProviderLayer.Create(ctx, spec)
}

func (h *incompleteProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gets++; h.gets <= 3 {
		return incompleteSandbox{id: id}, nil
	}
	return h.ProviderLayer.Get(ctx, id)
}

// An incompleteSandbox is in the state creating.
type incompleteSandbox struct {
	atoll.Sandbox
	id string
}

func (u incompleteSandbox) ID() string { return u.id }
func (u incompleteSandbox) Status(context.Context) (atoll.Status, error) {
	return atoll.Status{ID: u.id, State: atoll.StateCreating, Spec: atoll.Spec{ID: u.id}}, nil
}

// A Create waits until the incomplete sandbox of a server that died is removed, and then succeeds.
func TestCreateWaitsForIncompleteSandbox(t *testing.T) {
	h := &incompleteProvider{ProviderLayer: atoll.ProviderLayer{Provider: openLocal(t)}}
	t.Cleanup(func() { h.Close() })
	b := newBalancer(t, h, 2)
	h.killServer = b.switchServer
	c := newPatientClient(t, b.url())
	sb, err := c.Create(t.Context(), &atoll.Spec{ID: atoll.NewID()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sb.Remove(context.WithoutCancel(t.Context()), atoll.RemoveVolumes()) })
	if err := atoll.Run(t.Context(), sb, &atoll.Command{Args: []string{"true"}}); err != nil {
		t.Error(err)
	}
	if h.gets < 3 {
		t.Errorf("the sandbox was created after %d calls of Get, while an incomplete one existed", h.gets)
	}
}

// A client without patience fails as if there were one server. A patient one fails in the end if no
// server comes back.
func TestPatienceEnds(t *testing.T) {
	b, c, _ := openSandbox(t)
	hasty, err := client.New(t.Context(), client.Options{URL: b.url(), Patience: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer hasty.Close()
	sb, err := hasty.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	var out syncBuffer
	p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", "echo on; sleep 300"}, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	out.awaitText(t, "on")
	b.killServer(0)
	b.killServer(1)
	begun := time.Now()
	_, err = p.Wait(t.Context())
	if took := time.Since(begun); !errors.Is(err, atoll.ErrUnavailable) || !strings.Contains(err.Error(), "may still run") || took > testenv.Scale(20*time.Second) {
		t.Errorf("Wait: %v, after %s", err, took)
	}
	if _, err := hasty.List(t.Context(), atoll.Filter{}); !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("List: %v, want ErrUnavailable", err)
	}
	b.switchServer()
	if err := c.Sandbox(sb.ID()).Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
}
