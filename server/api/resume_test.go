package api_test

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
	"github.com/seed46cd37a8/atoll/server/api"
)

// A balancer is one address with several servers behind it: a new connection goes to the
// first one that lives.
type balancer struct {
	net.Listener
	work sync.WaitGroup

	mu      sync.Mutex
	servers []*behind
}

// A behind is a server behind a balancer.
type behind struct {
	url   string
	end   func()
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
		b.servers = append(b.servers, serveBehind(t, p))
	}
	b.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			b.work.Go(func() { b.pass(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		for i := range b.servers {
			b.kill(i)
		}
		b.work.Wait()
	})
	return b
}

func serveBehind(t *testing.T, p atoll.Provider) *behind {
	t.Helper()
	s := &behind{url: "unix://" + filepath.Join(t.TempDir(), "s"), conns: map[net.Conn]net.Conn{}}
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
	s.end = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(s.end)
	return s
}

func (b *balancer) url() string { return "http://" + b.Addr().String() }

// pass carries one connection.
func (b *balancer) pass(conn net.Conn) {
	defer conn.Close()
	b.mu.Lock()
	var to *behind
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

// kill cuts all connections of a server, which gets no new ones.
func (b *balancer) kill(i int) {
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

// awaitClient waits until somebody is connected to a server that lives.
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
	t.Fatal("nobody comes to the other server")
}

// turn kills the server that lives, of two, and brings the other one back.
func (b *balancer) turn() {
	b.mu.Lock()
	live := 0
	if b.servers[0].down {
		live = 1
	}
	b.servers[1-live].down = false
	b.mu.Unlock()
	b.kill(live)
}

func patient(t *testing.T, url string) *api.Client {
	t.Helper()
	c, err := api.NewClient(t.Context(), api.ClientOptions{URL: url, Patience: testenv.Scale(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// openSandbox makes a sandbox of the provider local, and returns it as a client of two
// servers sees it.
func openSandbox(t *testing.T) (*balancer, *api.Client, atoll.Sandbox) {
	t.Helper()
	p := openLocal(t)
	t.Cleanup(func() { p.Close() })
	b := newBalancer(t, p, 2)
	c := patient(t, b.url())
	sb, err := c.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sb.Remove(context.WithoutCancel(t.Context()), atoll.RemoveVolumes()) })
	return b, c, sb
}

// A turner is a writer that has the servers change after so many bytes, again and again.
type turner struct {
	safe
	every, last int
	turn        func()
}

func (w *turner) Write(p []byte) (int, error) {
	n, err := w.safe.Write(p)
	if w.b.Len()-w.last >= w.every {
		w.last = w.b.Len()
		w.turn()
	}
	return n, err
}

const lines = 400_000

// numbers is what "seq" prints.
func numbers() []byte {
	var all bytes.Buffer
	for i := range lines {
		fmt.Fprintln(&all, i+1)
	}
	return all.Bytes()
}

// What a command prints, faster than anybody could come again, is whole and in order
// whichever servers die meanwhile, and so is its exit.
func TestExecOverManyServers(t *testing.T) {
	b, _, sb := openSandbox(t)
	out := &turner{every: 300 << 10, turn: b.turn}
	var errs bytes.Buffer
	p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", fmt.Sprintf("seq %d; echo done >&2; exit 7", lines)}, Stdout: out, Stderr: &errs})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(t.Context())
	if err != nil || exit.Code != 7 || errs.String() != "done\n" {
		t.Errorf("Wait: %v, %v, stderr %q; want 7", exit, err, &errs)
	}
	if want := numbers(); sha256.Sum256(want) != sha256.Sum256(out.b.Bytes()) {
		t.Errorf("%d bytes came, other ones than the %d that were printed", out.b.Len(), len(want))
	}
	if out.last < 5*out.every {
		t.Errorf("the servers changed after %d bytes last: that is too few times", out.last)
	}
}

// So it is for who attaches, from any offset, and for one writer of a single stream.
func TestAttachOverManyServers(t *testing.T) {
	b, _, sb := openSandbox(t)
	script := fmt.Sprintf("until [ -e begin ]; do echo tick; sleep 0.05; done; read x; echo; seq %d", lines)
	p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", script}, OpenStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	whole := &turner{every: 500 << 10, turn: b.turn}
	var half safe
	var reading sync.WaitGroup
	for _, a := range []*atoll.Attachment{{Stdout: whole, Stderr: whole}, {Stdout: &half, StdoutFrom: atoll.FromNow}} {
		reading.Go(func() {
			if err := p.Attach(t.Context(), a); err != nil {
				t.Errorf("Attach: %v", err)
			}
		})
	}
	whole.await(t, "tick")
	half.await(t, "tick")
	if err := atoll.WriteFile(t.Context(), sb, "begin", nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(t.Context(), &atoll.Attachment{Stdin: strings.NewReader("go\n")}); err != nil {
		t.Error(err)
	}
	reading.Wait()
	_, one, _ := bytes.Cut(whole.b.Bytes(), []byte("\n\n"))
	_, other, _ := bytes.Cut(half.b.Bytes(), []byte("\n\n"))
	want := numbers()
	for name, got := range map[string][]byte{"from the start": one, "from now": other} {
		if at := firstDifference(got, want); at >= 0 {
			t.Errorf("attached %s: %d bytes came, want %d; they differ at %d", name, len(got), len(want), at)
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

// A Wait, with nothing attached, is asked for again.
func TestWaitOverManyServers(t *testing.T) {
	b, _, sb := openSandbox(t)
	p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", "sleep 1; exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, b.turn)
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 3 {
		t.Errorf("Wait: %v, %v; want 3", exit, err)
	}
}

// A safe is a buffer that is read while it is written.
type safe struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safe) await(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(testenv.Scale(time.Minute)); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		has := strings.Contains(s.b.String(), text)
		s.mu.Unlock()
		if has {
			return
		}
	}
	t.Fatalf("%q never came: %q", text, s.b.String())
}

// A terminal goes on, with what is typed before and after.
func TestTerminalOverManyServers(t *testing.T) {
	b, _, sb := openSandbox(t)
	keys, typed := io.Pipe()
	defer typed.Close()
	screen := &safe{}
	p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh"}, TTY: &atoll.Size{Rows: 24, Cols: 80}, Stdin: keys, Stdout: screen})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		fmt.Fprintf(typed, "echo is$((40+%d))\n", i)
		screen.await(t, fmt.Sprintf("is%d\r\n", 40+i))
		b.turn()
		b.awaitClient(t) // a key that is pressed before the loss is seen is lost, and ends it
	}
	fmt.Fprintln(typed, "exit 5")
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 5 {
		t.Errorf("Wait: %v, %v; want 5", exit, err)
	}
}

// Input that has all arrived is no hindrance; input that has not, or that would go on, is
// told.
func TestInputOverManyServers(t *testing.T) {
	b, _, sb := openSandbox(t)
	var out safe
	p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", "cat; echo .; sleep 1; echo end"}, Stdin: strings.NewReader("all"), Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	out.await(t, "all.")
	b.turn()
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 || out.b.String() != "all.\nend\n" {
		t.Errorf("Wait: %v, %v; printed %q", exit, err, &out.b)
	}
	keys, typed := io.Pipe()
	defer typed.Close()
	out = safe{}
	if p, err = sb.Exec(t.Context(), &atoll.Command{Args: []string{"cat"}, Stdin: keys, Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(typed, "some")
	out.await(t, "some")
	b.turn()
	if exit, err := p.Wait(t.Context()); err == nil && exit.Code != 0 || err != nil && !strings.Contains(err.Error(), "its input has ended with the connection") {
		t.Errorf("Wait: %v, %v; want that it has ended with its input, or why it cannot be gone on with", exit, err)
	}
}

// Who watches is told what has changed, once.
func TestWatchOverManyServers(t *testing.T) {
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
			t.Fatal("no event came")
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
		b.turn()
		time.Sleep(300 * time.Millisecond)
	}
	other, err := c.Create(t.Context(), &atoll.Spec{NoStart: true})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := next(), other.ID()[:4]+" created"; got != want { // nothing was told again
		t.Errorf("the event %q, want %q", got, want)
	}
	b.kill(0)
	b.kill(1)
	behindTheScenes(t, b, other.ID())
	time.Sleep(100 * time.Millisecond)
	b.turn()
	if got, want := next(), other.ID()[:4]+" removed"; got != want {
		t.Errorf("the event %q, want %q", got, want)
	}
	cancel()
	if err := <-watched; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch ended with %v", err)
	}
}

// behindTheScenes removes a sandbox not by way of the balancer.
func behindTheScenes(t *testing.T, b *balancer, id string) {
	t.Helper()
	c, err := api.NewClient(t.Context(), api.ClientOptions{URL: b.servers[0].url})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Sandbox(id).Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Fatal(err)
	}
}

// A file that is being read goes on, unless it is another one by now.
func TestReadOverManyServers(t *testing.T) {
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
		b.turn()
		rest, err := io.ReadAll(r)
		switch got := append(begin, rest...); {
		case changed && !errors.Is(err, atoll.ErrUnavailable):
			t.Errorf("of a file that was changed: %d bytes, %v; want it to be unavailable", len(got), err)
		case !changed && (err != nil || !bytes.Equal(got, want)):
			t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
		}
		r.Close()
	}
}

// A server that closes has its clients go to the others, of which they know: nobody sees
// an error.
func TestClosingSendsElsewhere(t *testing.T) {
	p := openLocal(t)
	t.Cleanup(func() { p.Close() })
	one, two := serveBehind(t, p), serveBehind(t, p)
	c := patient(t, one.url+","+two.url)
	sb, err := c.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Remove(context.WithoutCancel(t.Context()), atoll.RemoveVolumes())
	var out safe
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
	out.await(t, "one")
	one.end()
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

// A half is a provider whose first sandbox is half made when its server dies. It is in the
// way of another one of its id until somebody has looked a few times.
type half struct {
	atoll.ProviderLayer
	die func()

	mu    sync.Mutex
	begun bool
	looks int
}

func (h *half) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	h.mu.Lock()
	first, inTheWay := !h.begun, h.begun && h.looks < 3
	h.begun = true
	h.mu.Unlock()
	switch {
	case first:
		h.die()
		<-ctx.Done()
		return nil, ctx.Err()
	case inTheWay:
		return nil, atoll.E("create", spec.ID, atoll.ErrAlreadyExists, nil)
	}
	return h.ProviderLayer.Create(ctx, spec)
}

func (h *half) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.looks++; h.looks <= 3 {
		return unmade{id: id}, nil
	}
	return h.ProviderLayer.Get(ctx, id)
}

// An unmade sandbox is half of one.
type unmade struct {
	atoll.Sandbox
	id string
}

func (u unmade) ID() string { return u.id }
func (u unmade) Status(context.Context) (atoll.Status, error) {
	return atoll.Status{ID: u.id, State: atoll.StateCreating, Spec: atoll.Spec{ID: u.id}}, nil
}

// What a server that has died has half made is no answer to who wanted it: that it goes is
// waited for, and then it is made.
func TestHalfMadeIsWaitedFor(t *testing.T) {
	h := &half{ProviderLayer: atoll.ProviderLayer{Provider: openLocal(t)}}
	t.Cleanup(func() { h.Close() })
	b := newBalancer(t, h, 2)
	h.die = b.turn
	c := patient(t, b.url())
	sb, err := c.Create(t.Context(), &atoll.Spec{ID: atoll.NewID()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sb.Remove(context.WithoutCancel(t.Context()), atoll.RemoveVolumes()) })
	if err := atoll.Run(t.Context(), sb, &atoll.Command{Args: []string{"true"}}); err != nil {
		t.Error(err)
	}
	if h.looks < 3 {
		t.Errorf("it was made after %d looks, while half of it was in the way", h.looks)
	}
}

// One who is not patient is told what he was told before, and where nobody comes back, so
// is everybody else in the end.
func TestPatienceEnds(t *testing.T) {
	b, c, _ := openSandbox(t)
	hasty, err := api.NewClient(t.Context(), api.ClientOptions{URL: b.url(), Patience: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer hasty.Close()
	sb, err := hasty.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	var out safe
	p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", "echo on; sleep 300"}, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	out.await(t, "on")
	b.kill(0)
	b.kill(1)
	begun := time.Now()
	_, err = p.Wait(t.Context())
	if took := time.Since(begun); !errors.Is(err, atoll.ErrUnavailable) || !strings.Contains(err.Error(), "may still run") || took > testenv.Scale(20*time.Second) {
		t.Errorf("Wait: %v, after %s", err, took)
	}
	if _, err := hasty.List(t.Context(), atoll.Filter{}); !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("List: %v, want it to be unavailable", err)
	}
	b.turn()
	if err := c.Sandbox(sb.ID()).Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
}
