package statedir

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// openDir makes a state directory for the test.
func openDir(t *testing.T) Dir {
	t.Helper()
	d, err := Open(filepath.Join(t.TempDir(), "state [1]")) // not a pattern
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// makeUnlocked makes the directory of a sandbox and releases its lock.
func makeUnlocked(t *testing.T, d Dir) (id string) {
	t.Helper()
	id = atoll.NewID()
	l, err := d.Make(id)
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	return id
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// listNames lists the content of a directory.
func listNames(t *testing.T, elem ...string) string {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(elem...))
	must(t, "read directory", err)
	var all []string
	for _, e := range list {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func TestMakeIsLocked(t *testing.T) {
	d, id := openDir(t), atoll.NewID()
	l, err := d.Make(id)
	must(t, "make", err)
	_, err = d.TryLock(id)
	wantErr(t, "lock what is being made", err, ErrBusy)
	_, err = d.Make(id)
	wantErr(t, "make it again", err, fs.ErrExist)
	busy := d.Busy(id)
	l.Release()
	if !busy || d.Busy(id) || !d.Busy(atoll.NewID()) {
		t.Error("it is busy when it is locked or gone, and only then")
	}
	l, err = d.TryLock(id)
	must(t, "lock", err)
	l.Release()
	if got := listNames(t, string(d), "sandboxes"); got != id {
		t.Errorf("sandboxes: %s, want %s", got, id)
	}
}

func TestLockOfNothing(t *testing.T) {
	d := openDir(t)
	_, err := d.TryLock(atoll.NewID())
	wantErr(t, "TryLock", err, fs.ErrNotExist)
	_, err = d.Lock(t.Context(), atoll.NewID())
	wantErr(t, "Lock", err, fs.ErrNotExist)
	_, err = d.LockSupervisor(atoll.NewID())
	wantErr(t, "LockKeeper", err, fs.ErrNotExist)
	if d.Alive(atoll.NewID()) {
		t.Error("Alive")
	}
}

// Lock waits for the holder, until ctx ends.
func TestLockWaits(t *testing.T) {
	d := openDir(t)
	id := makeUnlocked(t, d)
	synctest.Test(t, func(t *testing.T) {
		held, err := d.TryLock(id)
		must(t, "lock", err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = d.Lock(ctx, id)
		wantErr(t, "held all the time", err, context.DeadlineExceeded)

		time.AfterFunc(time.Minute, held.Release)
		begun := time.Now()
		l, err := d.Lock(t.Context(), id)
		must(t, "held for a minute", err)
		l.Release()
		if waited := time.Since(begun); waited < time.Minute || waited > time.Minute+time.Second {
			t.Errorf("waited %v", waited)
		}
	})
}

// A waiter for the lock of a sandbox that is removed meanwhile does not get it: it would
// guard nothing.
func TestLockOfTheRemoved(t *testing.T) {
	d := openDir(t)
	id := makeUnlocked(t, d)
	held, err := d.TryLock(id)
	must(t, "lock", err)
	waiting := make(chan error, 1)
	go func() {
		l, err := d.Lock(t.Context(), id)
		l.Release()
		waiting <- err
	}()
	must(t, "discard", discardDir(d.Sandbox(id)))
	held.Release()
	wantErr(t, "lock", <-waiting, fs.ErrNotExist)
}

// There is at most one holder, however often the sandbox is removed and made anew: a lock
// on the file of a removed one does not count.
func TestOneHolder(t *testing.T) {
	d, id := openDir(t), atoll.NewID()
	var holders, held atomic.Int32
	var work sync.WaitGroup
	for i := range 4 {
		work.Go(func() {
			for range 500 {
				l, err := d.Make(id)
				if errors.Is(err, fs.ErrExist) {
					l, err = d.TryLock(id)
				}
				if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrBusy) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n > 1 {
					t.Errorf("%d holders", n)
				}
				held.Add(1)
				holders.Add(-1)
				if i%2 == 0 {
					if err := discardDir(d.Sandbox(id)); err != nil {
						t.Error(err)
					}
				}
				l.Release()
			}
		})
	}
	work.Wait()
	if held.Load() == 0 {
		t.Error("nobody ever held the lock")
	}
}

// A supervisor's lock says that it lives, as long as it does. Looking never takes the lock:
// a supervisor that starts just then would give up.
func TestSupervisorLock(t *testing.T) {
	d := openDir(t)
	id := makeUnlocked(t, d)
	if d.Alive(id) {
		t.Error("alive before there was a supervisor")
	}
	looking, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(looking)
		for {
			select {
			case <-stop:
				return
			default:
				d.Alive(id)
			}
		}
	}()
	for range 1000 {
		l, err := d.LockSupervisor(id)
		must(t, "lock", err)
		if !d.Alive(id) {
			t.Fatal("not alive while it is held")
		}
		_, err = d.LockSupervisor(id)
		wantErr(t, "a second supervisor", err, ErrBusy)
		if who, err := d.Supervisor(id); err != nil || who.PID != os.Getpid() {
			t.Fatalf("its supervisor is %+v, %v", who, err)
		}
		l.Release()
		if d.Alive(id) {
			t.Fatal("alive after it was released")
		}
	}
	close(stop)
	<-looking
}

// The same holds for the lock of systems that do not tell a lock's state.
func TestHoldAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	looks := func() bool {
		f, err := os.Open(path)
		must(t, "open", err)
		defer f.Close()
		return isLockedAlone(f)
	}
	holds := func() (*os.File, error) {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		must(t, "open", err)
		return f, takeLockAlone(f)
	}
	first, err := holds()
	must(t, "lock", err)
	first.Close()
	stop := make(chan struct{})
	var looking sync.WaitGroup
	for range 2 {
		looking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					looks()
				}
			}
		})
	}
	for range 200 {
		f, err := holds()
		must(t, "lock", err)
		if !looks() {
			t.Error("free while it is held")
		}
		second, err := holds()
		wantErr(t, "a second one", err, ErrBusy)
		second.Close()
		f.Close()
		if looks() {
			t.Error("held after it was closed")
		}
	}
	close(stop)
	looking.Wait()
	if runtime.GOOS == "windows" {
		return // Windows cannot remove open files
	}
	must(t, "remove", os.Remove(path))
	f, err := holds()
	must(t, "lock", err)
	defer f.Close()
	must(t, "remove", os.Remove(path))
	wantErr(t, "of what was removed", takeLockAlone(f), fs.ErrNotExist)
}

// Locks end with their process, however it ends.
func TestLocksOfTheKilled(t *testing.T) {
	if id := os.Getenv("ATOLL_TEST_LOCK"); id != "" {
		holdLocks(Dir(os.Getenv("ATOLL_TEST_DIR")), id)
	}
	d := openDir(t)
	id := makeUnlocked(t, d)
	cmd := rerunTest("TestLocksOfTheKilled", "ATOLL_TEST_LOCK="+id, "ATOLL_TEST_DIR="+string(d))
	out, err := cmd.StdoutPipe()
	must(t, "pipe", err)
	must(t, "start", cmd.Start())
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_, err = d.TryLock(id)
	wantErr(t, "lock", err, ErrBusy)
	other, err := os.Open(otherLock(d, id))
	must(t, "open", err)
	defer other.Close()
	if !d.Alive(id) || !isLockedAlone(other) {
		t.Error("the supervisor's lock is free")
	}
	_, err = d.LockSupervisor(id)
	wantErr(t, "supervisor's lock", err, ErrBusy)
	must(t, "kill", cmd.Process.Kill())
	_ = cmd.Wait() // killed
	l, err := d.TryLock(id)
	must(t, "lock of the dead", err)
	l.Release()
	if d.Alive(id) || isLockedAlone(other) {
		t.Error("a dead supervisor is alive")
	}
}

// rerunTest returns a command that runs one test of this program again, with more
// variables.
func rerunTest(test string, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// otherLock returns the path of a lock as other systems have it for supervisors.
func otherLock(d Dir, id string) string { return filepath.Join(d.Sandbox(id), "other.lock") }

func holdLocks(d Dir, id string) {
	_, err1 := d.TryLock(id)
	_, err2 := d.LockSupervisor(id)
	other, err3 := os.Create(otherLock(d, id))
	if err := errors.Join(err1, err2, err3, takeLockAlone(other)); err != nil {
		os.Exit(1)
	}
	os.Stdout.Write([]byte{'x'})
	<-time.After(time.Hour) // to be killed
}
