//go:build unix

package inprocess

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A fakeBackend is a Backend without real processes. "exit" ends at once with code 0, "fail" with code
// 3, "broken" cannot be started, and every other command runs until it is killed.
type fakeBackend struct {
	mu        sync.Mutex
	running   map[*fakeProcess]string // sandbox id by process
	swept     []string
	removed   []string
	sweep     error // returned by Sweep
	onRemoved func()
}

type fakeProcess struct {
	backend *fakeBackend
	done    chan struct{}
	end     func(atoll.Exit)
	exit    atoll.Exit
}

func (c *fakeBackend) Start(_ context.Context, pl *Place, cmd *atoll.Command, _ process.Stdio) (process.Handle, error) {
	w := &fakeProcess{backend: c, done: make(chan struct{})}
	var once sync.Once
	w.end = func(exit atoll.Exit) {
		once.Do(func() {
			c.mu.Lock()
			delete(c.running, w)
			c.mu.Unlock()
			w.exit = exit
			close(w.done)
		})
	}
	if cmd.Args[0] == "broken" {
		return nil, atoll.Errorf("exec", "", atoll.ErrCommandNotFound, "%q: no such command", cmd.Args[0])
	}
	c.mu.Lock()
	c.running[w] = pl.ID
	c.mu.Unlock()
	switch cmd.Args[0] {
	case "exit":
		w.end(atoll.Exit{})
	case "fail":
		w.end(atoll.Exit{Code: 3})
	}
	return w, nil
}

func (c *fakeBackend) Shell(*Place, *atoll.Command) string { return "shell" }
func (c *fakeBackend) OwnUser(user string) bool            { return user == "" || user == "me" }

func (c *fakeBackend) Sweep(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.swept = append(c.swept, id)
	return c.sweep
}

func (c *fakeBackend) Removed(id string) {
	if c.onRemoved != nil {
		c.onRemoved()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removed = append(c.removed, id)
}

// countProcesses returns the number of running processes of a sandbox.
func (c *fakeBackend) countProcesses(id string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, sandboxID := range c.running {
		if sandboxID == id {
			n++
		}
	}
	return n
}

func (w *fakeProcess) PID() int         { return 0 }
func (w *fakeProcess) Wait() atoll.Exit { <-w.done; return w.exit }
func (w *fakeProcess) Kill() error      { w.end(atoll.Exit{Signal: atoll.SIGKILL, Code: 137}); return nil }

func (w *fakeProcess) Signal(sig atoll.Signal) error {
	w.end(atoll.Exit{Signal: sig, Code: 128 + int(sig)})
	return nil
}

// A testProvider is a Provider with a fakeBackend.
type testProvider struct {
	*Provider
	backend *fakeBackend
	dir     string
}

func newTestProvider(t *testing.T, dir string) *testProvider {
	t.Helper()
	return newProviderWithStep(t, dir, nil)
}

// newProviderWithStep is newTestProvider with Options.Step.
func newProviderWithStep(t *testing.T, dir string, step func(name string) error) *testProvider {
	t.Helper()
	c := &fakeBackend{running: map[*fakeProcess]string{}}
	p, err := New(Options{
		Info:    atoll.Info{Name: "pretended", Caps: atoll.Caps{Volumes: true, Files: true}},
		Backend: c, Dir: dir, Image: "none", Address: "127.0.0.1", Step: step,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return &testProvider{p, c, dir}
}

func (l *testProvider) createSandbox(t *testing.T, spec atoll.Spec) atoll.Sandbox {
	t.Helper()
	sb, err := l.Create(t.Context(), &spec)
	must(t, "create", err)
	return sb
}

// listFiles returns the records, locks and volumes on disk.
func (l *testProvider) listFiles(t *testing.T) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(l.dir, func(path string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(l.dir, path)
		if depth := strings.Count(rel, "/"); depth > 0 && !e.IsDir() || depth == 2 { // volumes/project/name
			all = append(all, rel)
		}
		return err
	})
	must(t, "walk", err)
	return strings.Join(all, " ")
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wantKind(t *testing.T, what string, err error, want atoll.Kind) {
	t.Helper()
	if got := atoll.KindOf(err); got != want {
		t.Errorf("%s: %v (%q), want %q", what, err, got, want)
	}
}

func statusOf(t *testing.T, sb atoll.Sandbox) atoll.Status {
	t.Helper()
	st, err := sb.Status(t.Context())
	must(t, "status", err)
	return st
}

// A Create that fails at any step leaves nothing behind, except a volume that existed before.
func TestCreateThatFails(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		ctx  context.Context
		spec atoll.Spec
		want atoll.Kind
	}{
		"main process":     {t.Context(), atoll.Spec{Cmd: []string{"broken"}}, atoll.ErrCommandNotFound},
		"ctx":              {ended, atoll.Spec{}, atoll.KindOf(context.Canceled)},
		"invalid":          {t.Context(), atoll.Spec{ID: "no id"}, atoll.ErrInvalid},
		"image":            {t.Context(), atoll.Spec{Image: "other"}, atoll.ErrUnsupported},
		"user":             {t.Context(), atoll.Spec{User: "root"}, atoll.ErrUnsupported},
		"memory":           {t.Context(), atoll.Spec{Resources: atoll.Resources{Memory: 1 << 30}}, atoll.ErrUnsupported},
		"network":          {t.Context(), atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn}}, atoll.ErrUnsupported},
		"terminal":         {t.Context(), atoll.Spec{Cmd: []string{"x"}, TTY: &atoll.Size{Rows: 1, Cols: 1}}, atoll.ErrUnsupported},
		"read-only root":   {t.Context(), atoll.Spec{ReadOnlyRoot: true}, atoll.ErrUnsupported},
		"bind mount":       {t.Context(), atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: "/", Target: "/work/x"}}}, atoll.ErrUnsupported},
		"mount elsewhere":  {t.Context(), atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "v", Target: "/x"}}}, atoll.ErrUnsupported},
		"read-only volume": {t.Context(), atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "v", Target: "/work/x", ReadOnly: true}}}, atoll.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestProvider(t, t.TempDir())
			if tt.spec.ID == "" {
				tt.spec.ID, tt.spec.Name = atoll.NewID(), "web"
			}
			sb, err := l.Create(tt.ctx, &tt.spec)
			wantKind(t, "create", err, tt.want)
			if sb != nil {
				t.Errorf("a sandbox with an error: %v", sb)
			}
			if left := l.listFiles(t); left != "" {
				t.Errorf("left: %s", left)
			}
			l.createSandbox(t, atoll.Spec{ID: map[bool]string{true: tt.spec.ID}[name != "invalid"], Name: "web"}) // id and name are free
		})
	}
	t.Run("existing volume", func(t *testing.T) {
		l := newTestProvider(t, t.TempDir())
		sb := l.createSandbox(t, atoll.Spec{})
		must(t, "remove", sb.Remove(t.Context()))
		before := l.listFiles(t)
		_, err := l.Create(t.Context(), &atoll.Spec{ID: sb.ID(), Cmd: []string{"broken"}})
		wantKind(t, "create", err, atoll.ErrCommandNotFound)
		if left := l.listFiles(t); left != before || before == "" {
			t.Errorf("left: %s, want %s", left, before)
		}
	})
}

// An id belongs to one sandbox, and so does a name in its project.
func TestTaken(t *testing.T) {
	l := newTestProvider(t, t.TempDir())
	sb := l.createSandbox(t, atoll.Spec{Name: "web"})
	_, err := l.Create(t.Context(), &atoll.Spec{ID: sb.ID()})
	wantKind(t, "the id again", err, atoll.ErrAlreadyExists)
	_, err = l.Create(t.Context(), &atoll.Spec{Name: "web"})
	wantKind(t, "the name again", err, atoll.ErrAlreadyExists)
	other := l.createSandbox(t, atoll.Spec{Name: "web", Project: "other"})
	for project, want := range map[string]string{atoll.DefaultProject: sb.ID(), "other": other.ID()} {
		if got, err := l.Resolve(t.Context(), project, "web"); got != want || err != nil {
			t.Errorf("web of %s is %s, %v, want %s", project, got, err, want)
		}
	}
	must(t, "remove", sb.Remove(t.Context()))
	_, err = l.Resolve(t.Context(), "", "web")
	wantKind(t, "resolve a removed sandbox", err, atoll.ErrNotFound)
	l.createSandbox(t, atoll.Spec{ID: sb.ID(), Name: "web"})

	id := atoll.NewID()
	var work sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		work.Go(func() { _, errs[i] = l.Create(t.Context(), &atoll.Spec{ID: id}) })
	}
	work.Wait()
	if n := len(slices.DeleteFunc(errs, func(err error) bool { return err != nil })); n != 1 {
		t.Errorf("%d sandboxes have the same id, want 1", n)
	}
}

// When the main process ends, the sandbox stops, and with it all other processes.
func TestMainProcess(t *testing.T) {
	for args, want := range map[string]struct {
		state atoll.State
		code  int
	}{"exit": {atoll.StateStopped, 0}, "fail": {atoll.StateFailed, 3}} {
		l := newTestProvider(t, t.TempDir())
		sb := l.createSandbox(t, atoll.Spec{Cmd: []string{args}})
		st := awaitState(t, sb, want.state)
		if st.Exit == nil || st.Exit.Code != want.code || st.Ready || st.Stopped.IsZero() || st.Address != "" {
			t.Errorf("%s: %+v", args, st)
		}
		if p, err := sb.Process(t.Context(), atoll.MainProcess); err != nil {
			t.Errorf("%s: the main process: %v", args, err)
		} else if exit, err := p.Wait(t.Context()); exit.Code != want.code || err != nil {
			t.Errorf("%s: wait: %+v, %v", args, exit, err)
		}
		_, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"run"}})
		wantKind(t, "exec", err, atoll.ErrStopped)
		must(t, "start", sb.Start(t.Context())) // runs the main process again
		awaitState(t, sb, want.state)
	}

	l := newTestProvider(t, t.TempDir())
	sb := l.createSandbox(t, atoll.Spec{Cmd: []string{"run"}})
	for range 3 {
		_, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"run"}})
		must(t, "exec", err)
	}
	p, err := sb.Process(t.Context(), atoll.MainProcess)
	must(t, "process", err)
	if n := l.backend.countProcesses(sb.ID()); n != 4 {
		t.Fatalf("%d processes", n)
	}
	must(t, "kill", p.Signal(t.Context(), atoll.SIGKILL))
	awaitState(t, sb, atoll.StateStopped)
	if n := l.backend.countProcesses(sb.ID()); n != 0 {
		t.Errorf("%d processes still run", n)
	}
}

// The output of a main process outlives the program that ran it, until the next start.
func TestMainProcessOfAnEarlierProgram(t *testing.T) {
	dir := t.TempDir()
	l := newTestProvider(t, dir)
	ended := l.createSandbox(t, atoll.Spec{Cmd: []string{"fail"}})
	awaitState(t, ended, atoll.StateFailed)
	stopped := l.createSandbox(t, atoll.Spec{Cmd: []string{"run"}})
	must(t, "stop", stopped.Stop(t.Context(), 0))
	running := l.createSandbox(t, atoll.Spec{Cmd: []string{"run"}}) // Close ends it
	never := l.createSandbox(t, atoll.Spec{Cmd: []string{"run"}, NoStart: true})
	idle := l.createSandbox(t, atoll.Spec{})
	short := l.createSandbox(t, atoll.Spec{Cmd: []string{"exit"}, AutoRemove: true})
	awaitState(t, short, atoll.StateStopped)
	must(t, "close", l.Close())

	l = newTestProvider(t, dir)
	for sb, code := range map[atoll.Sandbox]int{ended: 3, stopped: 137, running: 137} {
		sb := l.getSandbox(t, sb.ID())
		p, err := sb.Process(t.Context(), atoll.MainProcess)
		must(t, "process", err)
		if exit, err := p.Wait(t.Context()); exit.Code != code || err != nil {
			t.Errorf("wait: %+v, %v, want code %d", exit, err, code)
		}
		list, err := atoll.Processes(t.Context(), sb)
		if len(list) != 1 || err != nil || list[0].Exit == nil || list[0].Exit.Code != code {
			t.Errorf("list: %+v, %v", list, err)
		}
		_, err = sb.Process(t.Context(), "other")
		wantKind(t, "another process", err, atoll.ErrStopped)
	}
	for _, sb := range []atoll.Sandbox{never, idle, short} {
		sb := l.getSandbox(t, sb.ID())
		_, err := sb.Process(t.Context(), atoll.MainProcess)
		wantKind(t, "process", err, atoll.ErrStopped)
		_, err = atoll.Processes(t.Context(), sb)
		wantKind(t, "list", err, atoll.ErrStopped)
	}
	again := l.getSandbox(t, stopped.ID())
	must(t, "start", again.Start(t.Context()))
	if files := l.listFiles(t); strings.Contains(files, again.ID()+".ended") || !strings.Contains(files, ended.ID()+".ended") {
		t.Errorf("after a start: %s", files)
	}
	must(t, "remove", l.getSandbox(t, ended.ID()).Remove(t.Context()))
	if files := l.listFiles(t); strings.Contains(files, ended.ID()+".ended") {
		t.Errorf("after a removal: %s", files)
	}
}

func awaitState(t *testing.T, sb atoll.Sandbox, want atoll.State) atoll.Status {
	t.Helper()
	for deadline := time.Now().Add(testenv.Scale(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		st := statusOf(t, sb)
		if st.State == want {
			return st
		}
		if time.Now().After(deadline) {
			t.Fatalf("state %s (%s), want %s", st.State, st.Reason, want)
		}
	}
}

func TestStopAndStart(t *testing.T) {
	l := newTestProvider(t, t.TempDir())
	sb := l.createSandbox(t, atoll.Spec{NoStart: true})
	if st := statusOf(t, sb); st.State != atoll.StateCreated || st.Ready {
		t.Errorf("created: %+v", st)
	}
	for range 2 {
		must(t, "start", sb.Start(t.Context()))
		must(t, "start again", sb.Start(t.Context()))
		if st := statusOf(t, sb); st.State != atoll.StateRunning || !st.Ready || st.Address == "" || st.Started.IsZero() {
			t.Errorf("started: %+v", st)
		}
		p, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"run"}})
		must(t, "exec", err)
		must(t, "write", atoll.WriteFile(t.Context(), sb, "file", []byte("kept"), 0))
		must(t, "stop", sb.Stop(t.Context(), time.Second))
		must(t, "stop again", sb.Stop(t.Context(), 0))
		if exit, err := p.Wait(t.Context()); exit.Signal != atoll.SIGTERM || err != nil {
			t.Errorf("the process: %+v, %v", exit, err)
		}
		if got, err := atoll.ReadFile(t.Context(), sb, "file"); string(got) != "kept" || err != nil {
			t.Errorf("a file of the stopped sandbox: %q, %v", got, err)
		}
	}
}

// If a start fails late, this program and the next one still have the exit and output of the main
// process of the previous run.
func TestStartThatFails(t *testing.T) {
	dir := t.TempDir()
	var fail atomic.Pointer[error]
	l := newProviderWithStep(t, dir, func(name string) error {
		if err := fail.Load(); err != nil && name == "record" {
			return *err
		}
		return nil
	})
	ended := l.createSandbox(t, atoll.Spec{Cmd: []string{"fail"}})
	awaitState(t, ended, atoll.StateFailed)
	stopped := l.createSandbox(t, atoll.Spec{Cmd: []string{"run"}})
	must(t, "stop", stopped.Stop(t.Context(), 0))
	created := l.createSandbox(t, atoll.Spec{Cmd: []string{"run"}, NoStart: true})
	exits := map[string]int{ended.ID(): 3, stopped.ID(): 137}
	same := func(sb atoll.Sandbox, want atoll.Status) {
		t.Helper()
		if got := statusOf(t, sb); got.State != want.State || got.Reason != want.Reason || got.Ready || !got.Stopped.Equal(want.Stopped) || (got.Exit == nil) != (want.Exit == nil) {
			t.Errorf("after a start that failed: %+v, want %+v", got, want)
		}
		p, err := sb.Process(t.Context(), atoll.MainProcess)
		if code, ran := exits[sb.ID()]; !ran {
			wantKind(t, "process", err, atoll.ErrStopped)
		} else if err != nil {
			t.Errorf("process: %v", err)
		} else if exit, err := p.Wait(t.Context()); exit.Code != code || err != nil {
			t.Errorf("wait: %+v, %v, want code %d", exit, err, code)
		}
		if n := l.backend.countProcesses(sb.ID()); n != 0 {
			t.Errorf("%d processes still run", n)
		}
	}
	no, before := errors.New("no"), map[string]atoll.Status{}
	fail.Store(&no)
	for _, sb := range []atoll.Sandbox{ended, stopped, created} {
		before[sb.ID()] = statusOf(t, sb)
		if err := sb.Start(t.Context()); !errors.Is(err, no) {
			t.Errorf("start: %v, want %v", err, no)
		}
		same(sb, before[sb.ID()])
	}
	fail.Store(nil)
	must(t, "close", l.Close())
	l = newTestProvider(t, dir)
	for id, st := range before {
		same(l.getSandbox(t, id), st)
		must(t, "start", l.getSandbox(t, id).Start(t.Context()))
	}
}

// A sandbox whose removal failed still exists, and its removal can be tried again.
func TestRemoveThatFails(t *testing.T) {
	l := newTestProvider(t, t.TempDir())
	sb := l.createSandbox(t, atoll.Spec{Cmd: []string{"run"}, Name: "web"})
	l.backend.sweep = errors.New("a process cannot be killed")
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); !errors.Is(err, l.backend.sweep) {
		t.Errorf("remove: %v", err)
	}
	if st := statusOf(t, sb); st.State != atoll.StateStopped {
		t.Errorf("state %s", st.State)
	}
	if id, err := l.Resolve(t.Context(), atoll.DefaultProject, "web"); id != sb.ID() || err != nil {
		t.Errorf("its name: %s, %v", id, err)
	}
	l.backend.sweep = nil
	must(t, "remove", sb.Remove(t.Context(), atoll.RemoveVolumes()))
	must(t, "remove again", sb.Remove(t.Context(), atoll.RemoveVolumes()))
	if left := l.listFiles(t); left != "" {
		t.Errorf("left: %s", left)
	}
	if got := strings.Join(l.backend.removed, " "); got != sb.ID() {
		t.Errorf("the backend removed %q, want %q", got, sb.ID())
	}
	_, err := sb.Status(t.Context())
	wantKind(t, "status", err, atoll.ErrNotFound)
	_, _, err = atoll.Files(sb).Read(t.Context(), "x", 0)
	wantKind(t, "read", err, atoll.ErrNotFound)
}

// During a removal, Files reports that the sandbox does not exist, and not that a file is missing.
func TestFilesDuringRemoval(t *testing.T) {
	l := newTestProvider(t, t.TempDir())
	sb := l.createSandbox(t, atoll.Spec{Name: "web"})
	must(t, "write", atoll.WriteFile(t.Context(), sb, "x", []byte("x"), 0))
	read := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.backend.onRemoved = func() { // its files are gone, but the sandbox still exists
		go func() {
			_, err := atoll.Files(sb).Stat(t.Context(), "x")
			read <- err
		}()
		if _, err := atoll.Files(sb).Stat(ctx, "x"); err != context.Canceled {
			t.Errorf("Stat with an ended context: %v", err)
		}
		select {
		case err := <-read:
			t.Errorf("Stat did not wait for the end of the removal: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	must(t, "remove", sb.Remove(t.Context(), atoll.RemoveVolumes()))
	wantKind(t, "stat", <-read, atoll.ErrNotFound)
}

// A sandbox is removed at its expiry. A sandbox with AutoRemove lingers after its main process, so
// that callers can read its output.
func TestTime(t *testing.T) {
	for name, tt := range map[string]struct {
		spec atoll.Spec
		ends time.Duration
	}{
		"TTL":        {atoll.Spec{NoStart: true, TTL: atoll.Duration(time.Hour)}, time.Hour},
		"AutoRemove": {atoll.Spec{Cmd: []string{"exit"}, AutoRemove: true}, atoll.AutoRemoveDelay},
		"both":       {atoll.Spec{Cmd: []string{"exit"}, AutoRemove: true, TTL: atoll.Duration(time.Second)}, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				l := newTestProvider(t, dir)
				sb := l.createSandbox(t, tt.spec)
				time.Sleep(tt.ends - time.Millisecond)
				synctest.Wait()
				statusOf(t, sb)
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				_, err := sb.Status(t.Context())
				wantKind(t, "status", err, atoll.ErrNotFound)
				must(t, "close", l.Close())
				if left := l.listFiles(t); left != "" {
					t.Errorf("left: %s", left)
				}
			})
		})
	}
}

// A sandbox with AutoRemove is removed for whatever reason its main process ended.
func TestAutoRemove(t *testing.T) {
	spec := atoll.Spec{Cmd: []string{"run"}, AutoRemove: true}
	for name, ended := range map[string]func(t *testing.T, dir string) (*testProvider, string){
		"stopped": func(t *testing.T, dir string) (*testProvider, string) {
			l := newTestProvider(t, dir)
			sb := l.createSandbox(t, spec)
			must(t, "stop", sb.Stop(t.Context(), 0))
			return l, sb.ID()
		},
		"its program was killed": func(t *testing.T, dir string) (*testProvider, string) {
			id := writeRecord(t, dir, atoll.StateRunning, true, func(st *atoll.Status) { st.Spec.Cmd, st.Spec.AutoRemove = spec.Cmd, true })
			return newTestProvider(t, dir), id
		},
		"its program was killed, the next one saw it": func(t *testing.T, dir string) (*testProvider, string) {
			id := writeRecord(t, dir, atoll.StateRunning, true, func(st *atoll.Status) { st.Spec.Cmd, st.Spec.AutoRemove = spec.Cmd, true })
			must(t, "close", newTestProvider(t, dir).Close())
			return newTestProvider(t, dir), id
		},
		"it did not start again": func(t *testing.T, dir string) (*testProvider, string) {
			var no error
			l := newProviderWithStep(t, dir, func(name string) error { return no })
			sb := l.createSandbox(t, spec)
			must(t, "stop", sb.Stop(t.Context(), 0))
			no = errors.New("no")
			if err := sb.Start(t.Context()); !errors.Is(err, no) {
				t.Errorf("start: %v", err)
			}
			return l, sb.ID()
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				l, id := ended(t, dir)
				time.Sleep(atoll.AutoRemoveDelay - time.Millisecond)
				synctest.Wait()
				statusOf(t, l.getSandbox(t, id))
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				_, err := l.Get(t.Context(), id)
				wantKind(t, "get", err, atoll.ErrNotFound)
				must(t, "close", l.Close())
				if left := l.listFiles(t); left != "" {
					t.Errorf("left: %s", left)
				}
			})
		})
	}
}

// Close ends the running processes and waits for them. The next program finds the sandboxes.
func TestClose(t *testing.T) {
	dir := t.TempDir()
	l := newTestProvider(t, dir)
	sb := l.createSandbox(t, atoll.Spec{Cmd: []string{"run"}, Name: "web"})
	_, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"run"}})
	must(t, "exec", err)
	must(t, "close", l.Close())
	must(t, "close again", l.Close())
	if n := l.backend.countProcesses(sb.ID()); n != 0 {
		t.Errorf("%d processes still run", n)
	}
	for what, err := range map[string]error{"start": sb.Start(t.Context()), "stop": sb.Stop(t.Context(), 0), "remove": sb.Remove(t.Context())} {
		wantKind(t, what+" after close", err, atoll.ErrUnavailable)
	}
	_, err = l.Create(t.Context(), &atoll.Spec{})
	wantKind(t, "create after close", err, atoll.ErrUnavailable)

	again := newTestProvider(t, dir)
	id, err := again.Resolve(t.Context(), atoll.DefaultProject, "web")
	must(t, "resolve", err)
	sb, err = again.Get(t.Context(), id)
	must(t, "get", err)
	if st := statusOf(t, sb); st.State != atoll.StateStopped || st.Reason == "" {
		t.Errorf("after close: %+v", st)
	}
	must(t, "start", sb.Start(t.Context()))
}

// Concurrent calls may fail because of each other, but they leave nothing behind.
func TestAtOnce(t *testing.T) {
	l := newTestProvider(t, t.TempDir())
	id := atoll.NewID()
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			for range 30 {
				sb, err := l.Create(t.Context(), &atoll.Spec{ID: id, Name: "web", Cmd: []string{"run"}})
				if err != nil {
					if sb, err = l.Get(t.Context(), id); err != nil {
						continue
					}
				}
				_, execErr := sb.Exec(t.Context(), &atoll.Command{Args: []string{"exit"}})
				for _, err := range []error{execErr, sb.Stop(t.Context(), 0), sb.Start(t.Context())} {
					if k := atoll.KindOf(err); k != "" && k != atoll.ErrNotFound && k != atoll.ErrStopped {
						t.Errorf("worker %d: %v", i, err)
					}
				}
				if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
					t.Errorf("worker %d: remove: %v", i, err)
				}
			}
		})
	}
	work.Wait()
	if left := l.listFiles(t); left != "" || l.backend.countProcesses(id) != 0 {
		t.Errorf("left: %s, %d processes", left, l.backend.countProcesses(id))
	}
}
