package filesync_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/internal/testing/tests3"
	"github.com/seed46cd37a8/atoll/storage/filesync"
)

// killedEnv makes this program push, pull or prune, and kill itself at a step: "verb
// step nth bucket directory". With "-" for the step it doesn't kill itself; "pushes"
// then makes n versions of its own, and prints them.
const killedEnv = "ATOLL_STATESYNC_TEST_KILLED"

func TestMain(m *testing.M) {
	tests3.Isolate()
	if job := os.Getenv(killedEnv); job != "" {
		fmt.Fprintln(os.Stderr, runJob(job))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func runJob(job string) error {
	var verb, step, store, dir string
	var nth int64
	if _, err := fmt.Sscan(job, &verb, &step, &nth, &store, &dir); err != nil {
		return err
	}
	b, _, err := openAt(store)
	if err != nil {
		return err
	}
	var n atomic.Int64
	opts := filesync.Options{}
	if verb != "pushes" { // which nobody kills: a process that is only slow must not lose its lock
		opts = opts.WithExpire(expire)
	}
	r, err := filesync.New(b, prefix, opts.WithStep(func(name string) {
		if name == step && n.Add(1) == nth {
			self, err := os.FindProcess(os.Getpid())
			if err == nil {
				err = self.Kill()
			}
			time.Sleep(time.Hour) // until the kill
			panic(err)
		}
	}))
	if err != nil {
		return err
	}
	f, err := dirfs.New("/work", dir, dirfs.Options{UID: -1, GID: -1})
	if err != nil {
		return err
	}
	tree := filesync.Tree{FS: f, Dir: "/work"}
	switch verb {
	case "push":
		_, err = r.Push(context.Background(), tree, filesync.PushOptions{})
	case "pull":
		_, err = r.Pull(context.Background(), tree, filesync.PullOptions{})
	case "prune":
		_, err = r.Prune(context.Background(), filesync.Keep{Last: 1})
	case "pushes":
		return pushTimes(r, tree, dir, nth)
	}
	return fmt.Errorf("not killed: %v", err)
}

// runKilled has another process do it, which kills itself at a step.
func runKilled(t *testing.T, verb, step string, nth int, store, dir string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d %s %s", killedEnv, verb, step, nth, store, dir), "TMPDIR="+t.TempDir()) // it may leave an empty file there
	out, err := cmd.CombinedOutput()
	if err == nil || strings.Contains(string(out), "not killed") {
		t.Fatalf("%s at %s: %v: %s", verb, step, err, out)
	}
}

// expire is the lifetime of abandoned locks in tests that wait for it.
const expire = 300 * time.Millisecond

// A scene is a bucket with two versions; an editor has pushed the second.
type scene struct {
	store  string
	remote *filesync.Remote
	editor *testDir
	was    map[int64]string // content of the versions
}

func newScene(t *testing.T, store string) *scene {
	s := &scene{store: store, editor: newPlace(t), was: map[int64]string{}}
	s.remote = newRemote(t, openStore(t, store), filesync.Options{}.WithExpire(expire))
	for i := range 2 {
		for n := range 20 {
			s.editor.writeText(fmt.Sprintf("dir %d/file %d", n%3, n), fmt.Sprint(i, n))
		}
		s.editor.writeText(fmt.Sprintf("only in %d", i), "x")
		s.editor.removeFile(fmt.Sprintf("only in %d", i-1))
		s.editor.writeText("big", strings.Repeat(fmt.Sprint(i), 400<<10))
		s.was[s.editor.push(s.remote).Version] = s.editor.content()
	}
	return s
}

// checkVersions checks that each version can be pulled.
func (s *scene) checkVersions(t *testing.T) {
	t.Helper()
	var all []int64
	for v, err := range s.remote.Versions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v.Version)
		fresh := newPlace(t)
		if st := fresh.pull(s.remote, filesync.PullOptions{Version: v.Version}); st.Failed > 0 {
			t.Errorf("version %d: %+v", v.Version, st)
		}
		if want, ok := s.was[v.Version]; ok && fresh.content() != want {
			t.Errorf("version %d: %s", v.Version, firstDifference(want, fresh.content()))
		}
	}
	if len(all) == 0 || !slices.IsSorted(all) {
		t.Errorf("versions: %v", all)
	}
}

// A push that is killed at any step leaves the version before, or has succeeded; and it
// doesn't hinder the next one.
func TestKilledPush(t *testing.T) { testKilledPush(t, testing.TB.TempDir) }

func testKilledPush(t *testing.T, store func(testing.TB) string) {
	for _, at := range []struct {
		step string
		nth  int
		done bool
	}{{"locked", 1, false}, {"object", 1, false}, {"object", 2, false}, {"state", 1, false}, {"committed", 1, true}} {
		t.Run(fmt.Sprint(at.step, at.nth), func(t *testing.T) {
			s := newScene(t, store(t))
			before := newestVersion(t, s.remote)
			s.editor.writeText("dir 1/file 1", "changed")
			s.editor.writeText("big", strings.Repeat("z", 500<<10))
			content := s.editor.content()
			runKilled(t, "push", at.step, at.nth, s.store, s.editor.dir)
			fresh := newPlace(t)
			st := fresh.pull(s.remote, filesync.PullOptions{})
			switch {
			case at.done && (st.Version == before || fresh.content() != content):
				t.Errorf("version %d, before %d: %s", st.Version, before, firstDifference(content, fresh.content()))
			case !at.done && (st.Version != before || fresh.content() != s.was[before]):
				t.Errorf("version %d, before %d: %s", st.Version, before, firstDifference(s.was[before], fresh.content()))
			}
			s.checkVersions(t)
			next := s.editor.push(s.remote) // waits for the lock to expire
			s.was[next.Version] = content
			fresh.pull(s.remote, filesync.PullOptions{})
			checkEqual(t, fresh, s.editor)
			s.checkVersions(t)
			if _, err := s.remote.Prune(t.Context(), filesync.Keep{}); err != nil {
				t.Error(err)
			}
			s.checkVersions(t)
			if n := len(objectKeys(t, s.store)); n > 6 {
				t.Errorf("%d objects are left: %v", n, objectKeys(t, s.store))
			}
		})
	}
}

func newestVersion(t *testing.T, r *filesync.Remote) (latest int64) {
	t.Helper()
	for v, err := range r.Versions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		latest = v.Version
	}
	return latest
}

// objectKeys lists the keys of a bucket below objects.
func objectKeys(t *testing.T, store string) (keys []string) {
	t.Helper()
	for o, err := range openStore(t, store).List(t.Context(), prefix+"/objects/") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, o.Key)
	}
	return keys
}

// A pull that is killed at any step is finished by the next, and loses nothing.
func TestKilledPull(t *testing.T) { testKilledPull(t, testing.TB.TempDir) }

func testKilledPull(t *testing.T, store func(testing.TB) string) {
	for _, step := range []string{"judged", "removed", "written"} {
		t.Run(step, func(t *testing.T) {
			s := newScene(t, store(t))
			other := newPlace(t)
			versions := []int64{}
			for v := range s.was {
				versions = append(versions, v)
			}
			other.pull(s.remote, filesync.PullOptions{Version: slices.Min(versions)})
			other.writeText("mine", "untracked")
			other.writeText("dir 1/file 1", "mine")
			runKilled(t, "pull", step, 1, s.store, other.dir)
			st := other.pull(s.remote, filesync.PullOptions{})
			if st.Failed > 0 || len(st.Conflicts) != 1 || st.Conflicts[0].Path != "dir 1/file 1" {
				t.Errorf("Pull: %+v", st)
			}
			if other.readText("mine") != "untracked" || other.readText("dir 1/file 1") != "mine" {
				t.Error("what was changed here is lost")
			}
			other.removeFile("mine")
			other.writeText("dir 1/file 1", s.editor.readText("dir 1/file 1"))
			checkEqual(t, other, s.editor)
		})
	}
}

// A killed prune leaves intact versions, and the next one finishes.
func TestKilledPrune(t *testing.T) { testKilledPrune(t, testing.TB.TempDir) }

func testKilledPrune(t *testing.T, store func(testing.TB) string) {
	for _, step := range []string{"chosen", "version"} {
		t.Run(step, func(t *testing.T) {
			s := newScene(t, store(t))
			latest := newestVersion(t, s.remote)
			runKilled(t, "prune", step, 1, s.store, s.editor.dir)
			s.checkVersions(t)
			p, err := s.remote.Prune(t.Context(), filesync.Keep{Last: 1})
			if err != nil || p.Objects == 0 {
				t.Errorf("Prune: %+v, %v", p, err)
			}
			s.checkVersions(t)
			if newestVersion(t, s.remote) != latest {
				t.Errorf("the latest version is %d, was %d", newestVersion(t, s.remote), latest)
			}
			if p, err := s.remote.Prune(t.Context(), filesync.Keep{Last: 1}); err != nil || p.Objects > 0 || len(p.Versions) > 0 {
				t.Errorf("Prune once more: %+v, %v", p, err)
			}
		})
	}
}

// Concurrent pushes wait for each other: each version is of one of them, and none is
// lost.
func TestPushesAtOnce(t *testing.T) {
	store := t.TempDir()
	var mu sync.Mutex
	was := map[int64]string{}
	var all sync.WaitGroup
	r := newRemote(t, openStore(t, store), filesync.Options{})
	for i := range 4 {
		p := newPlace(t)
		all.Go(func() {
			for n := range 5 {
				for f := range 10 {
					p.writeText(fmt.Sprint("file ", f), fmt.Sprint(i, n, f))
				}
				st, err := r.Push(t.Context(), p.Tree, filesync.PushOptions{})
				if err != nil {
					t.Errorf("Push: %v", err)
					return
				}
				mu.Lock()
				if _, twice := was[st.Version]; twice {
					t.Errorf("version %d is there twice", st.Version)
				}
				was[st.Version] = p.content()
				mu.Unlock()
			}
		})
	}
	all.Wait()
	s := &scene{store: store, remote: r, was: was}
	s.checkVersions(t)
	if len(was) != 20 {
		t.Errorf("%d versions of 20", len(was))
	}
}

// A push that is held up until another program takes over commits nothing.
func TestTakenOver(t *testing.T) {
	s := newScene(t, t.TempDir())
	b := openStore(t, s.store)
	held, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow := newRemote(t, b, filesync.Options{}.WithExpire(time.Hour).WithStep(func(name string) {
		if name == "state" {
			once.Do(func() { close(held); <-goOn })
		}
	}))
	other := newPlace(t)
	other.writeText("of", "the slow one")
	done := make(chan error)
	go func() {
		_, err := slow.Push(t.Context(), other.Tree, filesync.PushOptions{})
		done <- err
	}()
	<-held
	s.editor.writeText("of", "the quick one")
	st := s.editor.push(s.remote)
	s.was[st.Version] = s.editor.content()
	close(goOn)
	if err := <-done; !errors.Is(err, filesync.ErrLost) || atoll.KindOf(err) != atoll.ErrConflict {
		t.Errorf("the slow push: %v", err)
	}
	s.checkVersions(t)
	if newestVersion(t, s.remote) != st.Version {
		t.Errorf("the latest is %d, want %d", newestVersion(t, s.remote), st.Version)
	}
	s.editor.writeText("of", "once more")
	st = s.editor.push(s.remote)
	s.was[st.Version] = s.editor.content()
	s.checkVersions(t)
	if len(s.was) != 4 {
		t.Errorf("versions: %d", len(s.was))
	}
}

// Versions increase, whatever the clock does.
func TestClockJumps(t *testing.T) {
	b := openBucket(t)
	now := time.Now()
	p := newPlace(t)
	var last int64
	for i, jump := range []time.Duration{0, -48 * time.Hour, 48 * time.Hour, -time.Second, 0} {
		r := newRemote(t, b, filesync.Options{}.WithNow(func() time.Time { return now.Add(jump) }))
		p.writeText("file", fmt.Sprint(i))
		st := p.push(r)
		if st.Version <= last {
			t.Errorf("version %d after %d", st.Version, last)
		}
		if again := p.push(r); again.Version != st.Version {
			t.Errorf("a version of nothing new: %d after %d", again.Version, st.Version)
		}
		last = st.Version
	}
}
