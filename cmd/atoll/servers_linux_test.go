package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testcluster"
	"github.com/seed46cd37a8/atoll/internal/testing/testengine"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// A fleet is a number of servers, each as on a machine of its own, that share a store and a Docker Engine or a
// cluster.
type fleet struct {
	t      *testing.T
	engine *testengine.Engine // nil with a cluster
	maker  []string           // settings of the provider
	held   func() []string    // lists the remaining resources of sandboxes
	dir    string
	front  *front
	all    []*server

	killed time.Time // when the last server was killed

	postgres *testenv.PostgresServer
	db       string // URL of the store
}

const (
	fleetToken = "the token of all servers"
	fleetImage = "atoll-local/busybox:1"
)

// fleetLease suits a busy machine, on which renewals may be late. Removals wait longer for a killed server.
var fleetLease = min(max(10*time.Second, testenv.Scale(5*time.Second)), 45*time.Second).Round(time.Second)

// A server is one atoll serve.
type server struct {
	f         *fleet
	name      string
	state     string
	addr      string
	cmd       *exec.Cmd
	log       *os.File
	ended     chan struct{}
	exit      error
	overrides []string
}

// newFleet starts n servers. Settings are variables, like ATOLL_MAX_SANDBOXES=2.
func newFleet(t *testing.T, n int, settings ...string) *fleet {
	t.Helper()
	return newFleetOn(t, onDocker, n, settings...)
}

// fleetsOn has the providers whose sandboxes servers can share.
var fleetsOn = map[string]func(*fleet){"docker": onDocker, "kubernetes": onKubernetes}

// newFleetOn is newFleet with a provider.
func newFleetOn(t *testing.T, on func(*fleet), n int, settings ...string) *fleet {
	t.Helper()
	testenv.Need(t, testenv.PostgreSQL)
	f := &fleet{t: t, postgres: testenv.OwnPostgres(t)}
	f.db = f.postgres.URL("fleet")
	var err error
	if f.dir, err = os.MkdirTemp("", "fleet"); err != nil { // short enough for a socket
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(f.dir) })
	on(f)
	f.front = newFront(t)
	for i := range n { // all at once, with a database without tables
		f.launch(string(rune('a'+i)), settings...)
	}
	t.Cleanup(f.nothingIsLeft)
	for _, s := range f.all {
		s.awaitReady()
		f.front.add(s.addr)
	}
	return f
}

// onDocker makes the fleet use a Docker Engine.
func onDocker(f *fleet) {
	f.t.Helper()
	f.engine = testengine.Docker(f.t)
	if err := f.engine.Load(fleetImage, testimage.WithSockets(f.t)); err != nil {
		f.t.Fatal(err)
	}
	guest, err := testenv.Guest()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.dir, "guest"), guest, 0o755); err != nil {
		f.t.Fatal(err)
	}
	f.maker = []string{
		"ATOLL_PROVIDER=docker", "ATOLL_PROVIDERS=docker", "ATOLL_DOCKER_HOST=" + f.engine.TCP(f.t), "ATOLL_DOCKER_IMAGE=" + fleetImage,
		"ATOLL_DOCKER_GUEST=" + filepath.Join(f.dir, "guest"),
	}
	f.held = func() []string { return f.engine.Held(f.t) }
}

// onKubernetes makes the fleet use a cluster.
func onKubernetes(f *fleet) {
	f.t.Helper()
	c, settings := cluster(f.t)
	f.maker = append(settings, "ATOLL_PROVIDER=kubernetes", "ATOLL_PROVIDERS=kubernetes")
	f.held = func() []string {
		return strings.Fields(c.Kubectl(f.t, "get", "pods,pvc,configmaps,networkpolicies", "-l", "atoll/owner", "-o", "name"))
	}
}

// cluster starts a cluster for the test and returns the settings of a provider that uses it.
func cluster(t *testing.T) (*testcluster.Cluster, []string) {
	t.Helper()
	c := testcluster.Own(t)
	const image, guest = "localhost/busybox:1", "localhost/atoll-guest:1"
	c.Load(t, image, testimage.WithSockets(t))
	program, err := testenv.Guest()
	if err != nil {
		t.Fatal(err)
	}
	c.Load(t, guest, testimage.New(t, v1.Config{}, testimage.Layer(t, testimage.File("atoll-guest", 0o555, string(program)))))
	return c, []string{
		"ATOLL_KUBERNETES_KUBECONFIG=" + c.OutsideKubeconfig(), "ATOLL_KUBERNETES_IMAGE=" + image, "ATOLL_KUBERNETES_GUEST_IMAGE=" + guest,
		"ATOLL_KUBERNETES_REQUESTS=0.05", "ATOLL_KUBERNETES_NETWORK_POLICY=ignored",
	}
}

// Sandboxes on a cluster have their whole lifecycle, as seen by kubectl.
func TestKubernetesScripts(t *testing.T) {
	c, settings := cluster(t)
	runScripts(t, "testdata/kubernetes", "kubernetes", append(settings, "KUBECTL="+testenv.Kube(t, "kubectl"), "KUBECONFIG="+c.OutsideKubeconfig())...)
}

// start starts a server and waits until it is ready.
func (f *fleet) start(name string, settings ...string) *server {
	f.t.Helper()
	s := f.launch(name, settings...)
	s.awaitReady()
	return s
}

// launch starts a server.
func (f *fleet) launch(name string, settings ...string) *server {
	f.t.Helper()
	s := &server{f: f, name: name, state: filepath.Join(f.dir, name), overrides: settings}
	f.all = append(f.all, s)
	s.run()
	return s
}

// run starts the server's program on a port that is free at the moment.
func (s *server) run() {
	t := s.f.t
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	l.Close()
	env := append(os.Environ(), "HOME="+s.state, "XDG_CONFIG_HOME="+s.state, "ATOLL_STATE_DIR="+s.state,
		"ATOLL_STORE_URL="+s.f.db, "ATOLL_STORE_LEASE="+fleetLease.String(),
		"FLEET_TOKEN="+fleetToken, "ATOLL_TOKEN=env:FLEET_TOKEN", "ATOLL_LOG_LEVEL=info", "ATOLL_RECONCILE_EVERY=1s")
	s.cmd = atollCmd(slices.Concat(env, s.f.maker, s.overrides), "atoll", "serve", "--listen", s.addr)
	if s.log, err = os.Create(s.state + ".log"); err != nil {
		t.Fatal(err)
	}
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.ended = make(chan struct{})
	cmd, ended := s.cmd, s.ended
	go func() {
		s.exit = cmd.Wait()
		close(ended)
	}()
}

// awaitReady waits until the server accepts requests.
func (s *server) awaitReady() {
	t := s.f.t
	t.Helper()
	s.f.await("server "+s.name+" is ready", func() bool {
		select {
		case <-s.ended:
			if strings.Contains(s.said(), "address already in use") { // another program has taken the port since
				s.log.Close()
				s.run()
				return false
			}
			t.Fatalf("server %s has ended: %v\n%s", s.name, s.exit, s.said())
		default:
		}
		return s.answers("/readyz") == http.StatusOK
	})
}

// answers returns the status of a GET, or 0 without an answer.
func (s *server) answers(path string) int {
	resp, err := http.Get("http://" + s.addr + path)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

func (s *server) said() string {
	text, _ := os.ReadFile(s.state + ".log")
	return string(text)
}

// signal sends a signal and waits for the end.
func (s *server) signal(sig syscall.Signal) {
	_ = s.cmd.Process.Signal(sig) // it may have ended
	select {
	case <-s.ended:
	case <-time.After(deadline):
		s.f.t.Errorf("server %s does not end\n%s", s.name, s.said())
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
	s.log.Close()
}

// kill kills the server, like a power failure.
func (s *server) kill() {
	s.signal(syscall.SIGKILL)
	s.f.killed = time.Now()
}

// nothingIsLeft removes all sandboxes on the last server, reconciles it, ends all servers, and checks that no
// resources remain.
func (f *fleet) nothingIsLeft() {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Scale(5*time.Minute))
	defer cancel()
	f.front.open()
	last := f.start("last")
	c := f.client(last)
	all, err := c.List(ctx, atoll.Filter{})
	if err != nil {
		f.t.Error(err)
	}
	for _, st := range all {
		if err := c.Sandbox(st.ID).Remove(ctx, atoll.RemoveVolumes()); err != nil {
			f.t.Errorf("remove %s: %v", st.ID, err)
		}
	}
	for _, s := range f.all {
		if s != last {
			s.signal(syscall.SIGTERM)
		}
	}
	time.Sleep(time.Until(f.killed.Add(fleetLease + time.Second))) // before that, its unfinished work still belongs to it
	f.await("there is nothing to reconcile", func() bool {
		sum, err := c.Reconcile(ctx, registry.ReconcileOptions{})
		return err == nil && len(sum.Findings) == 0 && sum.Healthy == 0
	})
	c.Close()
	last.signal(syscall.SIGTERM)
	left := f.held()
	for end := time.Now().Add(deadline); len(left) > 0 && time.Now().Before(end); left = f.held() { // a cluster removes volumes a moment later
		time.Sleep(100 * time.Millisecond)
	}
	if len(left) > 0 {
		f.t.Errorf("remaining resources: %q", left)
	}
	if f.t.Failed() {
		for _, s := range f.all {
			f.t.Logf("server %s:\n%s", s.name, s.said())
		}
	}
}

// await polls until ok.
func (f *fleet) await(what string, ok func() bool) {
	f.t.Helper()
	f.awaitFor(deadline, what, ok)
}

func (f *fleet) awaitFor(d time.Duration, what string, ok func() bool) {
	f.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	f.t.Fatalf("condition never met: %s", what)
}

// client returns an impatient client of one server.
func (f *fleet) client(s *server) *client.Client {
	f.t.Helper()
	return f.open(client.Options{URL: "http://" + s.addr})
}

// patient returns a client of the common address of all servers.
func (f *fleet) patient() *client.Client {
	f.t.Helper()
	return f.open(client.Options{URL: f.front.url(), Patience: deadline})
}

func (f *fleet) open(opts client.Options) *client.Client {
	f.t.Helper()
	opts.Token = fleetToken
	c, err := client.New(context.Background(), opts)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	return c
}

// create creates a sandbox.
func (f *fleet) create(c *client.Client, spec atoll.Spec) atoll.Sandbox {
	f.t.Helper()
	sb, err := c.Create(f.t.Context(), &spec)
	if err != nil {
		f.t.Fatalf("Create: %v", err)
	}
	return sb
}

// A front is the common address of servers: it forwards each new connection to the first server that accepts it.
type front struct {
	net.Listener
	work sync.WaitGroup

	mu    sync.Mutex
	addrs []string
}

func newFront(t *testing.T) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{Listener: l}
	f.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.work.Go(func() { f.pass(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		f.work.Wait()
	})
	return f
}

func (f *front) url() string { return "http://" + f.Addr().String() }

func (f *front) add(addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addrs = append(f.addrs, addr)
}

// open forgets all servers.
func (f *front) open() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addrs = nil
}

func (f *front) pass(conn net.Conn) {
	defer conn.Close()
	f.mu.Lock()
	addrs := append([]string(nil), f.addrs...)
	f.mu.Unlock()
	for _, addr := range addrs {
		far, err := net.Dial("tcp", addr)
		if err != nil {
			continue
		}
		var back sync.WaitGroup
		back.Go(func() {
			_, _ = io.Copy(conn, far)
			conn.Close() // the server is gone
		})
		_, _ = io.Copy(far, conn)
		_ = far.(*net.TCPConn).CloseWrite()
		back.Wait()
		far.Close()
		return
	}
}

// A paper is a buffer that can be read while it is written.
type paper struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (p *paper) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.Write(b)
}

func (p *paper) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.String()
}

// The other server sees everything that one server has created.
func TestServersShareAll(t *testing.T) {
	for name, on := range fleetsOn {
		t.Run(name, func(t *testing.T) { shareAll(t, newFleetOn(t, on, 2, "ATOLL_MAX_SANDBOXES=4")) })
	}
}

func shareAll(t *testing.T, f *fleet) {
	ctx := t.Context()
	a, b := f.client(f.all[0]), f.client(f.all[1])
	sb := f.create(a, atoll.Spec{Name: "web"})
	id, err := b.Resolve(ctx, "", "web")
	if err != nil || id != sb.ID() {
		t.Fatalf("Resolve at the other server: %q, %v", id, err)
	}
	there := b.Sandbox(id)
	if out, err := atoll.Output(ctx, there, &atoll.Command{Args: []string{"echo", "here"}}); err != nil || string(out) != "here\n" {
		t.Errorf("exec at the other server: %q, %v", out, err)
	}
	if _, err := b.Create(ctx, &atoll.Spec{Name: "web"}); atoll.KindOf(err) != atoll.ErrAlreadyExists {
		t.Errorf("the same name at the other server: %v, want ErrAlreadyExists", err)
	}
	one, err := atoll.SecretOf(ctx, a, id)
	other, err2 := atoll.SecretOf(ctx, b, id)
	if err != nil || err2 != nil || one != other || one == "" {
		t.Errorf("the secret is %q, %v at one and %q, %v at the other", one, err, other, err2)
	}
	f.atOnce(a, b)
	f.limits(a, b)
	if err := there.Stop(ctx, 0); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if st, err := sb.Status(ctx); err != nil || st.State != atoll.StateStopped {
		t.Errorf("the state after Stop on the other server is %s, %v", st.State, err)
	}
	if err := there.Remove(ctx, atoll.RemoveVolumes()); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if _, err := sb.Status(ctx); atoll.KindOf(err) != atoll.ErrNotFound {
		t.Errorf("a sandbox removed on the other server: %v, want ErrNotFound", err)
	}
}

// atOnce opens one session on both servers, many times at once.
func (f *fleet) atOnce(clients ...*client.Client) {
	f.t.Helper()
	ctx := f.t.Context()
	var all sync.WaitGroup
	var mu sync.Mutex
	ids, made := map[string]bool{}, 0
	for i := range 10 {
		all.Go(func() {
			o, err := clients[i%len(clients)].OpenSession(ctx, &session.Spec{Scope: session.Scope{Kind: session.ScopeWorkflow, ID: "w"}})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				f.t.Errorf("OpenSession: %v", err)
				return
			}
			ids[o.Sandbox] = true
			if o.Opening == session.OpeningMade {
				made++
			}
		})
	}
	all.Wait()
	if len(ids) != 1 || made != 1 {
		f.t.Errorf("ten concurrent opens of a session: %d sandboxes, %d reported as created; want 1 and 1", len(ids), made)
	}
	if closed, err := session.EndScope(ctx, clients[1], "", session.Scope{Kind: session.ScopeWorkflow, ID: "w"}); err != nil || len(closed) != 1 {
		f.t.Errorf("EndScope at the other server: %v, %v", closed, err)
	}
}

// limits creates more sandboxes than allowed, on both servers at once.
func (f *fleet) limits(clients ...*client.Client) {
	f.t.Helper()
	ctx := f.t.Context()
	var all sync.WaitGroup
	var mu sync.Mutex
	var made []string
	for i := range 8 {
		all.Go(func() {
			sb, err := clients[i%len(clients)].Create(ctx, &atoll.Spec{})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				made = append(made, sb.ID())
			case atoll.KindOf(err) != atoll.ErrExhausted:
				f.t.Errorf("Create: %v, want success or ErrExhausted", err)
			}
		})
	}
	all.Wait()
	if len(made) != 3 { // one exists
		f.t.Errorf("%d sandboxes were created, with room for 3", len(made))
	}
	for _, id := range made {
		if err := clients[0].Sandbox(id).Remove(ctx, atoll.RemoveVolumes()); err != nil {
			f.t.Errorf("Remove: %v", err)
		}
	}
}

// numbered prints numbers, one per line, with a pause after the first few.
const numbered = `i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); done`

// A server is killed during streams, and their clients do not notice.
func TestServerKilledAmidStreams(t *testing.T) {
	for name, on := range fleetsOn {
		t.Run(name, func(t *testing.T) { killAmidStreams(t, newFleetOn(t, on, 2)) })
	}
}

func killAmidStreams(t *testing.T, f *fleet) {
	ctx := t.Context()
	c := f.patient() // through the first server
	sb := f.create(c, atoll.Spec{Name: "web"})

	const lines = 200_000
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	out, errs := &paper{}, &paper{}
	p, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sh", "-c", fmt.Sprintf(numbered, lines) + "; echo over >&2; exit 9"}, Stdout: out, Stderr: errs})
	if err != nil {
		t.Fatal(err)
	}
	keys, typed := io.Pipe()
	defer typed.Close()
	screen := &paper{}
	tty, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sh"}, TTY: &atoll.Size{Rows: 24, Cols: 80}, Stdin: keys, Stdout: screen})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(typed, "echo is$((40+1))")
	f.await("the terminal answers", func() bool { return strings.Contains(screen.String(), "is41") })
	silent, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sh", "-c", "sleep 3; exit 6"}})
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan string, 1)
	go func() {
		exit, err := silent.Wait(ctx)
		waited <- fmt.Sprint(exit.Code, " ", err)
	}()
	f.await("the status has the image", func() bool { // the kubelet reports it after the start
		st, err := sb.Status(ctx)
		return err == nil && strings.Contains(st.Image, "sha256:")
	})
	events := f.watch(c)
	data := bytes.Repeat([]byte("0123456789abcdef"), 2<<20)
	if err := atoll.WriteFile(ctx, sb, "/work/big", data, 0); err != nil {
		t.Fatal(err)
	}
	file, _, err := atoll.Files(sb).Read(ctx, "/work/big", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	begin := make([]byte, 1<<20)
	if _, err := io.ReadFull(file, begin); err != nil {
		t.Fatal(err)
	}
	upload, feeding := io.Pipe()
	uploaded := make(chan error, 1)
	go func() {
		_, err := atoll.Files(sb).Write(ctx, "/work/half", upload, atoll.WriteOptions{})
		uploaded <- err
	}()
	if _, err := feeding.Write(begin); err != nil {
		t.Fatal(err)
	}
	f.await("there is output", func() bool { return len(out.String()) > 0 })

	f.all[0].kill()

	if exit, err := p.Wait(ctx); err != nil || exit.Code != 9 || errs.String() != "over\n" {
		t.Errorf("the command: %v, %v, stderr %q; want 9", exit, err, errs)
	}
	if got := out.String(); got != want.String() {
		t.Errorf("%d bytes of output differ from the %d printed ones", len(got), want.Len())
	}
	goesOn(t, f, tty, typed, screen)
	if got := <-waited; got != "6 <nil>" {
		t.Errorf("a command without streams: %s; want 6", got)
	}
	rest, err := io.ReadAll(file)
	if err != nil || !bytes.Equal(append(begin, rest...), data) {
		t.Errorf("the file: %d more bytes, %v", len(rest), err)
	}
	if err := <-uploaded; atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("the upload: %v, want ErrUnavailable", err)
	}
	feeding.Close()
	if _, err := atoll.Files(sb).Stat(ctx, "/work/half"); atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("the partial upload: %v, want no file", err)
	}
	other := f.create(c, atoll.Spec{Name: "other"})
	f.await("the watch reports a sandbox", func() bool { return events.has(other.ID() + " running") })
	if n := events.count(sb.ID()); n != 1 {
		t.Errorf("the watch reported an unchanged sandbox %d times", n)
	}
	if n := events.count("synced"); n != 1 {
		t.Errorf("the watch was synced %d times", n)
	}
}

// goesOn checks that a terminal whose server was killed continues, or reports that the last input may not have
// arrived.
func goesOn(t *testing.T, f *fleet, tty atoll.Process, typed io.Writer, screen *paper) {
	t.Helper()
	type end struct {
		code int
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		exit, err := tty.Wait(t.Context())
		ended <- end{exit.Code, err}
	}()
	answers := func() bool { return strings.Contains(screen.String(), "is42") }
	fmt.Fprintln(typed, "echo is$((40+2))")
	f.await("the terminal answers again, or says that it cannot", func() bool { return answers() || len(ended) > 0 })
	if !answers() {
		if e := <-ended; e.err == nil || !strings.Contains(e.err.Error(), "bytes of stdin have arrived") {
			t.Errorf("the terminal: %+v", e)
		}
		return
	}
	fmt.Fprintln(typed, "exit 4")
	if e := <-ended; e != (end{code: 4}) {
		t.Errorf("the terminal: %+v, want 4", e)
	}
}

// seen records the events of a watch.
type seen struct {
	mu  sync.Mutex
	all []string
}

func (s *seen) has(what string) bool { return s.count(what) > 0 }

func (s *seen) count(what string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.all {
		if strings.Contains(e, what) {
			n++
		}
	}
	return n
}

// watch watches until the test ends.
func (f *fleet) watch(c *client.Client) *seen {
	s := &seen{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ev, err := range c.Watch(ctx) {
			if err != nil {
				if ctx.Err() == nil {
					f.t.Errorf("Watch: %v", err)
				}
				return
			}
			s.mu.Lock()
			if ev.Type == atoll.EventSynced {
				s.all = append(s.all, "synced")
			} else {
				s.all = append(s.all, ev.Status.ID+" "+string(ev.Status.State))
			}
			s.mu.Unlock()
		}
	}()
	f.t.Cleanup(func() {
		cancel()
		<-done
	})
	f.await("the watch is synced", func() bool { return s.has("synced") })
	return s
}
