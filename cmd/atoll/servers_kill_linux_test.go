package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/registry"
)

// If a server is killed while it creates and removes sandboxes, the other server completes named requests and undoes
// the others.
func TestServerKilledAmidCreations(t *testing.T) {
	f := newFleet(t, 2)
	ctx := t.Context()
	first, c, b := f.client(f.all[0]), f.patient(), f.client(f.all[1])
	var old []string
	for range 3 {
		old = append(old, f.create(c, atoll.Spec{}).ID())
	}
	var work sync.WaitGroup
	cut := make(chan error, 3)
	for i := range 3 { // impatient clients get an error
		work.Go(func() {
			_, err := first.Create(ctx, &atoll.Spec{Name: fmt.Sprintf("cut%d", i)})
			cut <- err
		})
	}
	ids := []string{atoll.NewID(), atoll.NewID(), atoll.NewID()}
	for _, id := range ids {
		work.Go(func() {
			sb, err := c.Create(ctx, &atoll.Spec{ID: id})
			if atoll.KindOf(err) == atoll.ErrAlreadyExists && strings.Contains(err.Error(), "whose connection was lost") {
				if sb, err = c.Get(ctx, id); err == nil { // it was created, but the response was lost
					err = sb.Start(ctx)
				}
			}
			if err == nil {
				err = atoll.Run(ctx, sb, &atoll.Command{Args: []string{"true"}})
			}
			if err != nil {
				t.Errorf("Create with an id: %v", err)
			}
		})
	}
	for _, id := range old {
		work.Go(func() {
			if err := c.Sandbox(id).Remove(ctx, atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove: %v", err)
			}
		})
	}
	time.Sleep(150 * time.Millisecond)
	f.all[0].kill()
	work.Wait()
	close(cut)
	for err := range cut {
		if err != nil && atoll.KindOf(err) != atoll.ErrUnavailable {
			t.Errorf("Create on a killed server: %v, want success or ErrUnavailable", err)
		}
	}
	for _, id := range old {
		if _, err := b.Get(ctx, id); atoll.KindOf(err) != atoll.ErrNotFound {
			t.Errorf("a sandbox whose removal was interrupted: %v, want ErrNotFound", err)
		}
	}
	var all []atoll.Status
	f.awaitFor(testenv.Scale(5*time.Minute), "interrupted work is finished", func() bool { // the servers wait a minute for a half-created sandbox
		sum, err := b.Reconcile(ctx, registry.ReconcileOptions{DryRun: true})
		if err == nil {
			all, err = b.List(ctx, atoll.Filter{})
		}
		return err == nil && len(sum.Findings) == 0 && sum.Healthy == len(all) && len(f.containers()) == len(all)
	})
	for _, st := range all {
		if err := atoll.Run(ctx, b.Sandbox(st.ID), &atoll.Command{Args: []string{"true"}}); err != nil {
			t.Errorf("sandbox %s %s: %v", st.ID, st.Spec.Name, err)
		}
	}
	for i := range 3 { // each name is free or has its sandbox
		if sb, err := b.Create(ctx, &atoll.Spec{Name: fmt.Sprintf("cut%d", i)}); err != nil && atoll.KindOf(err) != atoll.ErrAlreadyExists {
			t.Errorf("Create: %v, %v", sb, err)
		}
	}
}

// Warm sandboxes end with their server; the other server retains its own.
func TestServerKilledAmidStock(t *testing.T) {
	f := newFleet(t, 1, "ATOLL_CONFIG="+poolConfig(t, 3))
	f.all[0].kill()
	b := f.start("b", "ATOLL_CONFIG="+poolConfig(t, 2))
	c := f.client(b)
	stocked := func(containers int) func() bool {
		return func() bool {
			report, err := pool.ReportOf(t.Context(), c)
			return err == nil && len(report.Pools) == 1 && report.Pools[0].Warm == 2 && len(f.containers()) == containers
		}
	}
	f.await("only the stock of the living server remains", stocked(2))
	sb := f.create(c, atoll.Spec{Name: "web"})
	if err := atoll.Run(t.Context(), sb, &atoll.Command{Args: []string{"true"}}); err != nil {
		t.Error(err)
	}
	f.await("the stock is full again", stocked(3))
}

func poolConfig(t *testing.T, size int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, "pool:\n  web:\n    size: %d\n", size), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// containers lists the containers of the engine.
func (f *fleet) containers() (all []string) {
	for _, name := range f.engine.Held(f.t) {
		if strings.HasPrefix(name, "container ") {
			all = append(all, name)
		}
	}
	return all
}

// If a server is killed during the turn of an agent, the other server resumes the events where the client stopped,
// and stores the answer once.
func TestServerKilledAmidTurn(t *testing.T) {
	f := newFleet(t, 2)
	a, b := f.all[0], f.all[1]
	lines := int(max(6*time.Second, testenv.Scale(3*time.Second))/time.Second) + int(fleetLease/time.Second) // one a second: longer than fleetLease
	prompt := fmt.Sprintf(`for i in $(seq %d); do echo "text $i."; sleep 1; done`, lines)
	events := a.turn(t, "POST", "/v1/conversation/talk/sandbox/box", "", fmt.Sprintf(`{"provider": "shell", "prompt": %q}`, prompt))
	var read []string
	last := ""
	for ev := range events {
		read, last = append(read, ev.data), ev.id
		if strings.Contains(ev.data, "text 2.") {
			break
		}
	}
	a.kill()
	for range events { // until the stream breaks
	}
	f.await("the other server has the turn", func() bool {
		req, _ := http.NewRequest("GET", "http://"+b.addr+"/v1/conversation/talk/stream", nil)
		req.Header.Set("Authorization", "Bearer "+fleetToken)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	for ev := range b.turn(t, "GET", "/v1/conversation/talk/stream", last, "") {
		read = append(read, ev.data)
	}
	all := strings.Join(read, "\n")
	for i := 1; i <= lines; i++ {
		if n := strings.Count(all, fmt.Sprintf("text %d.", i)); n != 1 {
			t.Errorf("text %d came %d times", i, n)
		}
	}
	if !strings.Contains(read[len(read)-1], `"finish"`) {
		t.Errorf("the last event is %s", read[len(read)-1])
	}
	messages := b.get(t, "/v1/conversation/talk/messages")
	if n := strings.Count(messages, fmt.Sprintf("text %d.", lines)); n != 1 {
		t.Errorf("the answer was stored %d times: %s", n, messages)
	}
}

// A told is an event of a turn.
type told struct{ id, data string }

// turn sends a request whose response is events, and yields them until the stream breaks.
func (s *server) turn(t *testing.T, method, path, after, body string) <-chan told {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+fleetToken)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if after != "" {
		req.Header.Set("Last-Event-ID", after)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s %s: %s %s", method, path, resp.Status, text)
	}
	events := make(chan told)
	go func() {
		defer close(events)
		defer resp.Body.Close()
		var ev told
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "id":
				ev.id = value
			case "data":
				ev.data = value
			case "":
				if ev.data != "" {
					select {
					case events <- ev:
					case <-ctx.Done():
						return
					}
				}
				ev = told{}
			}
		}
	}()
	return events
}

func (s *server) get(t *testing.T, path string) string {
	t.Helper()
	req, _ := http.NewRequest("GET", "http://"+s.addr+path, nil)
	req.Header.Set("Authorization", "Bearer "+fleetToken)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A server that ends sends its clients to the other one, which takes over at once.
func TestServerEnds(t *testing.T) {
	f := newFleet(t, 2, "ATOLL_STORE_LEASE=10m")
	ctx := t.Context()
	c := f.patient()
	sb := f.create(c, atoll.Spec{})
	out := &paper{}
	p, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sh", "-c", fmt.Sprintf(numbered, 50_000) + "; sleep 2; exit 3"}, Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	events := f.watch(c)
	ending := make(chan struct{})
	var work sync.WaitGroup
	for range 4 { // requests without a pause
		work.Go(func() {
			for {
				if err := atoll.Run(ctx, sb, &atoll.Command{Args: []string{"true"}}); err != nil {
					t.Errorf("a command during the end of a server: %v", err)
				}
				select {
				case <-ending:
					return
				default:
				}
			}
		})
	}
	time.Sleep(200 * time.Millisecond)
	begun := time.Now()
	f.all[0].signal(syscall.SIGTERM)
	if took := time.Since(begun); took > testenv.Scale(time.Minute) || f.all[0].exit != nil {
		t.Errorf("the server ended after %s with %v", took, f.all[0].exit)
	}
	time.Sleep(500 * time.Millisecond)
	close(ending)
	work.Wait()
	if exit, err := p.Wait(ctx); err != nil || exit.Code != 3 {
		t.Errorf("Wait: %v, %v; want 3", exit, err)
	}
	if n := strings.Count(out.String(), "\n"); n != 50_000 {
		t.Errorf("%d lines of output", n)
	}
	f.create(c, atoll.Spec{Name: "after"})
	f.await("the watch continues", func() bool { return events.count("running") >= 2 })
}

// The database restarts under both servers. Running commands continue; calls that need the database fail meanwhile;
// nothing is lost.
func TestServersWithoutStore(t *testing.T) {
	f := newFleet(t, 2)
	ctx := t.Context()
	a, b := f.client(f.all[0]), f.client(f.all[1])
	sb := f.create(a, atoll.Spec{Name: "web"})
	f.postgres.Kill()
	for _, c := range []atoll.Provider{a, b} {
		there, err := c.Get(ctx, sb.ID())
		if err == nil {
			err = atoll.Run(ctx, there, &atoll.Command{Args: []string{"true"}})
		}
		if err != nil {
			t.Errorf("a command without the store: %v", err)
		}
		if _, err := c.Create(ctx, &atoll.Spec{Name: "web"}); atoll.KindOf(err) != atoll.ErrUnavailable {
			t.Errorf("Create without the store: %v, want ErrUnavailable", err)
		}
	}
	for _, s := range f.all {
		f.await("the server is not ready", func() bool { return s.answers("/readyz") == http.StatusServiceUnavailable })
		if got := s.answers("/health"); got != http.StatusOK {
			t.Errorf("/health without the store: %d", got)
		}
	}
	f.postgres.Start(t)
	for _, s := range f.all {
		f.await("the server is ready again", func() bool { return s.answers("/readyz") == http.StatusOK })
	}
	if _, err := b.Create(ctx, &atoll.Spec{Name: "web"}); atoll.KindOf(err) != atoll.ErrAlreadyExists {
		t.Errorf("Create with a used name: %v, want ErrAlreadyExists", err)
	}
	f.create(b, atoll.Spec{Name: "more"})
	if err := atoll.Run(ctx, sb, &atoll.Command{Args: []string{"true"}}); err != nil {
		t.Error(err)
	}
}

// A server loses the database for longer than its lease while it creates sandboxes. The other server takes over the
// unfinished ones, and the first one does not continue them afterwards.
func TestServerCutOff(t *testing.T) {
	f := newFleet(t, 1)
	ctx := t.Context()
	line := newLine(t, f)
	cutOff := f.launch("cut", "ATOLL_STORE_URL="+strings.Replace(f.db, f.postgres.Socket(), line.dir, 1))
	cutOff.awaitReady()
	a, b := f.client(cutOff), f.client(f.all[0])
	sb := f.create(a, atoll.Spec{Name: "web"})
	var work sync.WaitGroup
	for i := range 4 {
		work.Go(func() {
			_, err := a.Create(ctx, &atoll.Spec{Name: fmt.Sprintf("n%d", i)})
			if err != nil && atoll.KindOf(err) != atoll.ErrUnavailable && atoll.KindOf(err) != atoll.ErrConflict {
				t.Errorf("Create without the database: %v", err)
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	line.cut()
	if err := atoll.Run(ctx, sb, &atoll.Command{Args: []string{"true"}}); err != nil {
		t.Errorf("a command without the database: %v", err)
	}
	time.Sleep(fleetLease + 2*time.Second)
	for i := range 4 { // each name has one owner
		if _, err := b.Create(ctx, &atoll.Spec{Name: fmt.Sprintf("n%d", i)}); err != nil && atoll.KindOf(err) != atoll.ErrAlreadyExists {
			t.Errorf("Create at the other server: %v", err)
		}
	}
	work.Wait()
	line.restoreLink(t)
	f.await("the server is ready again", func() bool { return cutOff.answers("/readyz") == http.StatusOK })
	f.await("both servers have the same sandboxes, one of each name", func() bool {
		one, err := a.List(ctx, atoll.Filter{})
		other, err2 := b.List(ctx, atoll.Filter{})
		names := map[string]int{}
		for _, st := range one {
			names[st.Spec.Name]++
		}
		return errors.Join(err, err2) == nil && len(one) == 5 && len(other) == 5 && len(names) == 5 && len(f.containers()) == 5
	})
}

// A line is a connection to the database that can be cut.
type line struct {
	dir, socket string
	work        sync.WaitGroup

	mu     sync.Mutex
	l      net.Listener
	conns  map[net.Conn]bool
	broken bool
}

func newLine(t *testing.T, f *fleet) *line {
	t.Helper()
	dir, err := os.MkdirTemp("", "line")
	if err != nil {
		t.Fatal(err)
	}
	l := &line{dir: dir, socket: filepath.Join(f.postgres.Socket(), ".s.PGSQL.5432"), conns: map[net.Conn]bool{}}
	l.restoreLink(t)
	t.Cleanup(func() {
		l.cut()
		l.work.Wait()
		os.RemoveAll(dir)
	})
	return l
}

// restoreLink lets new connections through.
func (l *line) restoreLink(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(l.dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.l, l.broken = listener, false
	l.work.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			l.work.Go(func() { l.pass(conn) })
		}
	})
}

func (l *line) pass(conn net.Conn) {
	defer conn.Close()
	far, err := net.Dial("unix", l.socket)
	if err != nil {
		return
	}
	defer far.Close()
	l.mu.Lock()
	if l.broken {
		l.mu.Unlock()
		return
	}
	l.conns[conn], l.conns[far] = true, true
	l.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(conn, far)
		conn.Close()
	})
	_, _ = io.Copy(far, conn)
	far.Close()
	back.Wait()
	l.mu.Lock()
	delete(l.conns, conn)
	delete(l.conns, far)
	l.mu.Unlock()
}

// cut breaks all connections, and refuses new ones.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = true
	l.l.Close()
	for conn := range l.conns {
		conn.Close()
	}
}
