package firecracker_test

import (
	"bufio"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/fakevmm"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/firecracker"
	"github.com/seed46cd37a8/atoll/machine/vm/vmtest"
)

func TestMain(m *testing.M) {
	switch name := filepath.Base(os.Args[0]); {
	case name == "firecracker":
		os.Exit(fakevmm.Firecracker(os.Args))
	case name == "jailer":
		os.Exit(fakevmm.Jailer(os.Args))
	case os.Getpid() == 1 && name == "init":
		fmt.Println("guest:", asGuest())
		select {}
	}
	vmtest.Starter(firecracker.New)
	os.Exit(m.Run())
}

// A lab is a fake Firecracker, and what a machine is made of.
type lab struct {
	t    testing.TB
	bin  string
	dirs int
	h    vm.Hardware
	opts firecracker.Options
}

func newLab(t testing.TB, s fakevmm.Script) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "fc") // not t.TempDir, whose paths are long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, bin: dir, opts: firecracker.Options{Program: filepath.Join(dir, "firecracker")}}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, l.opts.Program); err != nil {
		t.Fatal(err)
	}
	l.script(s)
	for _, name := range []string{"vmlinux", "initrd", "root.img", "data.img"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l.h = vm.Hardware{
		ID: "m-1", Dir: l.dir(), Console: filepath.Join(dir, "console"), CPUs: 2, Memory: 256 << 20,
		Kernel: filepath.Join(dir, "vmlinux"), Cmdline: []string{"quiet"}, CID: 3,
		Disks: []vm.Disk{
			{ID: "root", Path: filepath.Join(dir, "root.img"), ReadOnly: true},
			{ID: "da-ta", Path: filepath.Join(dir, "data.img")},
		},
	}
	return l
}

// script has the fakes that are started from now on follow s.
func (l *lab) script(s fakevmm.Script) {
	l.t.Helper()
	if err := s.Write(l.bin); err != nil {
		l.t.Fatal(err)
	}
}

// dir makes another machine's.
func (l *lab) dir() string {
	l.t.Helper()
	l.dirs++
	dir := filepath.Join(l.bin, "d"+strconv.Itoa(l.dirs))
	if err := os.Mkdir(dir, 0o700); err != nil {
		l.t.Fatal(err)
	}
	return dir
}

func (l *lab) machine() vm.Machine {
	l.t.Helper()
	m, err := firecracker.New(l.opts).New(&l.h)
	if err != nil {
		l.t.Fatal(err)
	}
	return m
}

// start starts a machine that is killed with the test.
func (l *lab) start() vm.Machine {
	l.t.Helper()
	m := l.machine()
	if err := m.Start(l.ctx()); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { m.Kill() })
	return m
}

// ctx is long enough for anything but what hangs.
func (l *lab) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Scale(time.Minute))
	l.t.Cleanup(cancel)
	return ctx
}

// nothingLeft reports what a machine has left in its directory, and processes.
func (l *lab) nothingLeft() {
	l.t.Helper()
	entries, err := os.ReadDir(l.h.Dir)
	if err != nil || len(entries) > 0 {
		l.t.Errorf("left in the machine's directory: %v %v", entries, err)
	}
	if pids := processes(l.bin); len(pids) > 0 {
		l.t.Errorf("processes are left: %v", pids)
	}
}

// processes returns the processes that have dir in their command line, or run in it.
func processes(dir string) []string {
	var found []string
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		text, _ := os.ReadFile(file)
		root, _ := os.Readlink(filepath.Dir(file) + "/root")
		cwd, _ := os.Readlink(filepath.Dir(file) + "/cwd")
		args := strings.ReplaceAll(string(text), "\x00", " ")
		if (strings.Contains(args, dir) || strings.HasPrefix(root, dir) || strings.HasPrefix(cwd, dir)) && args != "" && filepath.Base(filepath.Dir(file)) != strconv.Itoa(os.Getpid()) {
			found = append(found, filepath.Base(filepath.Dir(file))+" "+args)
		}
	}
	return found
}

// remembers sends something to the guest, and checks that it answers with what it received before.
func remembers(t testing.TB, conn net.Conn, say, want string) {
	t.Helper()
	conn.SetDeadline(time.Now().Add(testenv.Scale(10 * time.Second)))
	fmt.Fprintln(conn, say)
	if got, err := bufio.NewReader(conn).ReadString('\n'); err != nil || got != want+"\n" {
		t.Errorf("the guest remembers %q, %v; want %q", got, err, want)
	}
}

func wantKind(t testing.TB, err error, kind atoll.Kind, parts ...string) {
	t.Helper()
	if err == nil || atoll.KindOf(err) != kind {
		t.Errorf("got %v of kind %q, want kind %q", err, atoll.KindOf(err), kind)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v: does not say %q", err, part)
		}
	}
}

func TestLife(t *testing.T) {
	l := newLab(t, fakevmm.Script{Boot: 250})
	m := l.start()
	conn, err := m.Dial(l.ctx(), fakevmm.GuestPort)
	if err != nil {
		t.Fatal(err)
	}
	client, err := guest.Connect(l.ctx(), conn, l.h.ID)
	if err != nil {
		t.Fatal(err)
	}
	inside := client.Sandbox()
	const text = "written through a vsock"
	if err := atoll.WriteFile(l.ctx(), inside, "note", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := atoll.ReadFile(l.ctx(), inside, "note"); err != nil || string(got) != text {
		t.Errorf("read %q, %v", got, err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if _, err := m.Dial(l.ctx(), 99); atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("dialled a port where nothing listens: %v", err)
	}
	half, err := m.Dial(l.ctx(), fakevmm.MemoryPort)
	if err != nil {
		t.Fatal(err)
	}
	if err := half.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(half); err != nil || string(got) != "bye\n" {
		t.Errorf("after CloseWrite read %q, %v", got, err)
	}
	open, err := m.Dial(l.ctx(), fakevmm.MemoryPort)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Stop(l.ctx()); err != nil {
		t.Fatal(err)
	}
	if err := m.Wait(l.ctx()); err != nil {
		t.Errorf("after a guest has powered off: %v", err)
	}
	open.SetReadDeadline(time.Now().Add(testenv.Scale(10 * time.Second)))
	if n, err := open.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection outlives the machine: %d %v", n, err)
	}
	if _, err := m.Dial(l.ctx(), fakevmm.GuestPort); atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("dialled a machine that has ended: %v", err)
	}
	if err := m.Stop(l.ctx()); err != nil {
		t.Errorf("a second stop: %v", err)
	}
	for range 2 {
		if err := m.Kill(); err != nil {
			t.Error(err)
		}
	}
	l.nothingLeft()
	console, err := os.ReadFile(l.h.Console)
	if want := "Command line: console=ttyS0 reboot=k panic=1 pci=off atoll.off=restart atoll.disks=root,da-ta quiet root=/dev/vda ro\n"; err != nil || !strings.Contains(string(console), want) {
		t.Errorf("the console has %q, %v", console, err)
	}
	if err := m.Start(l.ctx()); atoll.KindOf(err) != atoll.ErrConflict {
		t.Errorf("started twice: %v", err)
	}
}

func TestKill(t *testing.T) {
	l := newLab(t, fakevmm.Script{Deaf: true})
	m := l.start()
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
	defer cancel()
	if err := m.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stopped a deaf guest: %v", err)
	}
	if err := m.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waited: %v", err)
	}
	if conn, err := m.Dial(l.ctx(), fakevmm.MemoryPort); err != nil {
		t.Errorf("the machine does not go on after a stop in vain: %v", err)
	} else {
		conn.Close()
	}
	waited := make(chan error, 1)
	go func() { waited <- m.Wait(context.Background()) }()
	if err := m.Kill(); err != nil {
		t.Error(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("a kill is no failure: %v", err)
	}
	l.nothingLeft()
}

// A guest of ours is asked on its port, where there is no keyboard.
func TestStopOnPort(t *testing.T) {
	l := newLab(t, fakevmm.Script{Mute: true})
	m := l.start()
	if err := m.Stop(l.ctx()); err != nil {
		t.Error(err)
	}
	if err := m.Wait(l.ctx()); err != nil {
		t.Error(err)
	}
}

func TestInitrdAndNoVsock(t *testing.T) {
	l := newLab(t, fakevmm.Script{})
	l.h.Initrd, l.h.CID, l.h.Cmdline = filepath.Join(l.bin, "initrd"), 0, nil
	m := l.start()
	if _, err := m.Dial(l.ctx(), fakevmm.GuestPort); atoll.KindOf(err) != atoll.ErrUnsupported {
		t.Errorf("dialled without a vsock: %v", err)
	}
	if err := m.Kill(); err != nil {
		t.Error(err)
	}
	if console, _ := os.ReadFile(l.h.Console); strings.Contains(string(console), "root=") {
		t.Errorf("an initrd looks for the root file system itself: %q", console)
	}
}

func TestPause(t *testing.T) {
	l := newLab(t, fakevmm.Script{})
	m := l.start()
	conn, err := m.Dial(l.ctx(), fakevmm.MemoryPort)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	remembers(t, conn, "one", "")
	for range 2 {
		if err := m.Pause(l.ctx()); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintln(conn, "two")
	conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a paused guest answers: %v", err)
	}
	wantKind(t, m.Stop(l.ctx()), atoll.ErrConflict, "resume it first")
	for range 2 {
		if err := m.Resume(l.ctx()); err != nil {
			t.Fatal(err)
		}
	}
	conn.SetReadDeadline(time.Now().Add(testenv.Scale(10 * time.Second)))
	if got, err := bufio.NewReader(conn).ReadString('\n'); err != nil || got != "one\n" {
		t.Errorf("after it was resumed: %q, %v", got, err)
	}
}

func TestSnapshot(t *testing.T) { testSnapshot(t, newLab(t, fakevmm.Script{})) }

func testSnapshot(t *testing.T, l *lab) {
	m := l.start()
	conn, err := m.Dial(l.ctx(), fakevmm.MemoryPort)
	if err != nil {
		t.Fatal(err)
	}
	remembers(t, conn, "kept in memory", "")
	dir := filepath.Join(l.bin, "snapshot")
	if err := m.Snapshot(l.ctx(), dir); err != nil {
		t.Fatal(err)
	}
	wantKind(t, m.Snapshot(l.ctx(), dir), atoll.ErrAlreadyExists)
	wantKind(t, m.Stop(l.ctx()), atoll.ErrConflict) // it is left paused
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}
	l.nothingLeft()
	conn.Close()

	// Twice, in directories of their own, and at once.
	l.h.Snapshot, l.h.Kernel = dir, ""
	for _, id := range []string{"m-2", "m-3"} {
		l.h.ID, l.h.Dir = id, l.dir()
		m := l.start()
		conn, err := m.Dial(l.ctx(), fakevmm.MemoryPort)
		if err != nil {
			t.Fatal(err)
		}
		remembers(t, conn, "changed by "+id, "kept in memory")
		conn.Close()
	}
}

func TestSnapshotOfOtherHardware(t *testing.T) {
	l := newLab(t, fakevmm.Script{})
	m := l.start()
	dir := filepath.Join(l.bin, "snapshot")
	if err := m.Snapshot(l.ctx(), dir); err != nil {
		t.Fatal(err)
	}
	m.Kill()
	good := l.h
	good.Snapshot = dir
	for name, change := range map[string]func(h *vm.Hardware){
		"memory":   func(h *vm.Hardware) { h.Memory *= 2 },
		"disks":    func(h *vm.Hardware) { h.Disks = h.Disks[:1] },
		"vsock":    func(h *vm.Hardware) { h.CID = 0 },
		"no files": func(h *vm.Hardware) { h.Snapshot = t.TempDir() },
	} {
		h := good
		change(&h)
		if _, err := firecracker.New(l.opts).New(&h); atoll.KindOf(err) != atoll.ErrInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	l.h = good
	l.script(fakevmm.Script{Version: "1.99.0"})
	wantKind(t, l.machine().Start(l.ctx()), atoll.ErrInvalid, "Invalid data version")
	l.nothingLeft()
	l.script(fakevmm.Script{})
	damaged := filepath.Join(dir, "state")
	if err := errors.Join(os.Remove(damaged), os.WriteFile(damaged, []byte("xyz"), 0o600)); err != nil {
		t.Fatal(err)
	}
	wantKind(t, l.machine().Start(l.ctx()), atoll.ErrInvalid, "Failed to load snapshot state")
	l.nothingLeft()
}

// A snapshot that fails leaves nothing, and a machine that runs as before.
func TestSnapshotFails(t *testing.T) {
	l := newLab(t, fakevmm.Script{Fault: map[string]string{"/snapshot/create": "Create snapshot error: no space"}})
	m := l.start()
	dir := filepath.Join(l.bin, "snapshot")
	wantKind(t, m.Snapshot(l.ctx(), dir), atoll.ErrInternal, "no space")
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
	conn, err := m.Dial(l.ctx(), fakevmm.MemoryPort)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	remembers(t, conn, "it goes on", "")
}

func TestStartFails(t *testing.T) {
	requests := []string{"/machine-config", "/boot-source", "/entropy", "/drives/root", "/drives/da_ta", "/vsock", "/actions"}
	for _, at := range append([]string{"begin", "/", "InstanceStart"}, requests...) {
		t.Run("dies at "+at, func(t *testing.T) {
			l := newLab(t, fakevmm.Script{Die: at})
			m := l.machine()
			wantKind(t, m.Start(l.ctx()), atoll.ErrUnavailable, "exit status 148", "told to die at "+at)
			l.nothingLeft()
			if err := m.Kill(); err != nil {
				t.Error(err)
			}
		})
	}
	for _, at := range requests {
		t.Run("refuses "+at, func(t *testing.T) {
			l := newLab(t, fakevmm.Script{Fault: map[string]string{at: "Some config error: of the " + at}})
			wantKind(t, l.machine().Start(l.ctx()), atoll.ErrInvalid, "400", at, "Some config error: of the "+at)
			l.nothingLeft()
		})
	}
	for _, at := range append([]string{"/"}, requests...) {
		t.Run("is slow at "+at, func(t *testing.T) {
			l := newLab(t, fakevmm.Script{Slow: map[string]int{at: 60_000}})
			ctx, cancel := context.WithTimeout(context.Background(), 400*time.Millisecond)
			defer cancel()
			began := time.Now()
			err := l.machine().Start(ctx)
			wantKind(t, err, atoll.ErrTimeout)
			if took := time.Since(began); took > testenv.Scale(10*time.Second) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("returned after %v: %v", took, err)
			}
			l.nothingLeft()
		})
	}
	t.Run("speaks no JSON", func(t *testing.T) {
		l := newLab(t, fakevmm.Script{Garbage: "/"})
		ctx, cancel := context.WithTimeout(context.Background(), 400*time.Millisecond)
		defer cancel()
		if err := l.machine().Start(ctx); err == nil {
			t.Error("started")
		}
		l.nothingLeft()
	})
	for name, change := range map[string]func(l *lab){
		"kernel": func(l *lab) { l.h.Kernel = "/there/is/none" },
		"disk":   func(l *lab) { l.h.Disks[1].Path = "/there/is/none" },
		"initrd": func(l *lab) { l.h.Initrd = "/there/is/none" },
	} {
		t.Run("lacks its "+name, func(t *testing.T) {
			l := newLab(t, fakevmm.Script{})
			change(l)
			wantKind(t, l.machine().Start(l.ctx()), atoll.ErrInvalid, "no such file or directory (os error 2)")
			l.nothingLeft()
		})
	}
	t.Run("has no program", func(t *testing.T) {
		l := newLab(t, fakevmm.Script{})
		l.opts.Program = "/there/is/none"
		wantKind(t, l.machine().Start(l.ctx()), atoll.ErrUnavailable, "install firecracker")
		l.nothingLeft()
	})
	t.Run("has no console", func(t *testing.T) {
		l := newLab(t, fakevmm.Script{})
		l.h.Console = l.opts.Program + "/none"
		wantKind(t, l.machine().Start(l.ctx()), atoll.ErrInternal, "console")
		l.nothingLeft()
	})
}

// One that was killed with its starter leaves its sockets, as Firecracker does.
func TestLeftovers(t *testing.T) {
	l := newLab(t, fakevmm.Script{})
	if err := os.Mkdir(filepath.Join(l.h.Dir, "fc"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"api.sock", "v.sock"} {
		s, err := net.Listen("unix", filepath.Join(l.h.Dir, "fc", name))
		if err != nil {
			t.Fatal(err)
		}
		s.(*net.UnixListener).SetUnlinkOnClose(false)
		s.Close()
	}
	m := l.start()
	if conn, err := m.Dial(l.ctx(), fakevmm.MemoryPort); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}
	m.Kill()
	l.nothingLeft()
}

func TestDialFaults(t *testing.T) {
	short := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), 300*time.Millisecond)
	}
	t.Run("silent", func(t *testing.T) {
		l := newLab(t, fakevmm.Script{Silent: true})
		m := l.start()
		ctx, cancel := short()
		defer cancel()
		began := time.Now()
		_, err := m.Dial(ctx, fakevmm.GuestPort)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > testenv.Scale(10*time.Second) {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
	t.Run("never up", func(t *testing.T) {
		l := newLab(t, fakevmm.Script{Boot: 60_000})
		m := l.start()
		ctx, cancel := context.WithTimeout(context.Background(), testenv.Scale(time.Second)) // time for one attempt at least
		defer cancel()
		_, err := m.Dial(ctx, fakevmm.GuestPort)
		wantKind(t, err, atoll.ErrUnavailable, "nothing listens on port 52")
	})
	for _, answer := range []string{"NO 52\n", "OK fifty\n", "OK 99999999999\n", strings.Repeat("x", 100)} {
		t.Run("answers "+answer[:4], func(t *testing.T) {
			l := newLab(t, fakevmm.Script{Answer: answer})
			m := l.start()
			_, err := m.Dial(l.ctx(), fakevmm.GuestPort)
			wantKind(t, err, atoll.ErrInternal, "the other end")
		})
	}
	for _, answer := range []string{"OK 52\n", "OK 0\n", "OK 4294967295\n"} {
		t.Run("answers "+answer, func(t *testing.T) {
			l := newLab(t, fakevmm.Script{Answer: answer})
			m := l.start()
			if conn, err := m.Dial(l.ctx(), fakevmm.GuestPort); err != nil {
				t.Error(err)
			} else {
				conn.Close()
			}
		})
	}
	soon := int(testenv.Scale(500 * time.Millisecond).Milliseconds()) // after the answer to the start
	t.Run("ends meanwhile", func(t *testing.T) {
		l := newLab(t, fakevmm.Script{Boot: 60_000, Panic: soon})
		m := l.start()
		_, err := m.Dial(l.ctx(), fakevmm.GuestPort)
		wantKind(t, err, atoll.ErrUnavailable, "has ended")
		wantKind(t, m.Wait(l.ctx()), atoll.ErrInternal, "exit status 148", "told to die")
		m.Kill()
		wantKind(t, m.Wait(l.ctx()), atoll.ErrInternal, "exit status 148")
		l.nothingLeft()
	})
	t.Run("the guest crashes", func(t *testing.T) {
		l := newLab(t, fakevmm.Script{Crash: soon})
		if err := os.WriteFile(l.h.Console, []byte("Kernel panic - not syncing: of another time\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		m := l.start()
		wantKind(t, m.Wait(l.ctx()), atoll.ErrInternal, "the guest has crashed: kernel panic: VFS: Unable to mount root fs")
		m.Kill()
		l.nothingLeft()
	})
	t.Run("not started", func(t *testing.T) {
		l := newLab(t, fakevmm.Script{})
		m := l.machine()
		_, err := m.Dial(l.ctx(), fakevmm.GuestPort)
		wantKind(t, err, atoll.ErrStopped)
		wantKind(t, m.Stop(l.ctx()), atoll.ErrStopped)
		if err := m.Kill(); err != nil {
			t.Error(err)
		}
	})
}

func TestEndsWithItsStarter(t *testing.T) { testStarter(t, newLab(t, fakevmm.Script{})) }

func testStarter(t *testing.T, l *lab) {
	kill := vmtest.StartElsewhere(t, l.opts, l.h)
	if len(processes(l.bin)) == 0 {
		t.Error("there is no machine")
	}
	kill()
	for deadline := time.Now().Add(testenv.Scale(10 * time.Second)); len(processes(l.bin)) > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("they outlive their starter: %v", processes(l.bin))
		}
		time.Sleep(20 * time.Millisecond)
	}
	m := l.start() // with what that one has left
	m.Kill()
	l.nothingLeft()
}

func TestNewChecks(t *testing.T) {
	l := newLab(t, fakevmm.Script{})
	for name, c := range map[string]struct {
		change func(h *vm.Hardware)
		kind   atoll.Kind
	}{
		"no id":          {func(h *vm.Hardware) { h.ID = "" }, atoll.ErrInvalid},
		"id":             {func(h *vm.Hardware) { h.ID = "a_b" }, atoll.ErrInvalid},
		"long id":        {func(h *vm.Hardware) { h.ID = strings.Repeat("a", 65) }, atoll.ErrInvalid},
		"relative dir":   {func(h *vm.Hardware) { h.Dir = "x" }, atoll.ErrInvalid},
		"no kernel":      {func(h *vm.Hardware) { h.Kernel = "" }, atoll.ErrInvalid},
		"no CPUs":        {func(h *vm.Hardware) { h.CPUs = 0 }, atoll.ErrInvalid},
		"many CPUs":      {func(h *vm.Hardware) { h.CPUs = 33 }, atoll.ErrInvalid},
		"little memory":  {func(h *vm.Hardware) { h.Memory = 127 << 20 }, atoll.ErrInvalid},
		"much memory":    {func(h *vm.Hardware) { h.Memory = 32769 << 20 }, atoll.ErrInvalid},
		"the host's CID": {func(h *vm.Hardware) { h.CID = 2 }, atoll.ErrInvalid},
		"a disk twice":   {func(h *vm.Hardware) { h.Disks = append(slices.Clone(h.Disks), h.Disks[0]) }, atoll.ErrInvalid},
		"qcow2": {func(h *vm.Hardware) {
			h.Disks = []vm.Disk{{ID: "a", Path: "/a", Format: vm.FormatQcow2}}
		}, atoll.ErrUnsupported},
		"archive": {func(h *vm.Hardware) { h.Root = "/root.tar" }, atoll.ErrUnsupported},
		"shares":  {func(h *vm.Hardware) { h.Shares = []vm.Share{{Tag: "a", Dir: "/"}} }, atoll.ErrUnsupported},
		"network": {func(h *vm.Hardware) {
			h.Network, h.MAC = os.Stdin, net.HardwareAddr{2, 0, 0, 0, 0, 1}
		}, atoll.ErrUnsupported},
	} {
		h := l.h
		c.change(&h)
		if _, err := firecracker.New(l.opts).New(&h); atoll.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want kind %q", name, err, c.kind)
		}
	}
}

func TestProbe(t *testing.T) {
	l := newLab(t, fakevmm.Script{})
	d := firecracker.New(l.opts)
	p := d.Probe(l.ctx())
	if firecracker.TryKVM("/dev/kvm") == nil != p.OK || p.OK && !slices.Contains(p.Notes, "Firecracker v1.13.1") {
		t.Errorf("got %+v", p)
	}
	d = firecracker.New(l.opts)
	firecracker.SetKVM(d, "/dev/null")
	if p := d.Probe(l.ctx()); p.OK || !strings.Contains(p.Reason, "KVM does not work: /dev/null") || p.Fix == "" {
		t.Errorf("without KVM: %+v", p)
	}
	d = firecracker.New(firecracker.Options{Program: "/there/is/none"})
	if p := d.Probe(l.ctx()); p.OK || !strings.Contains(p.Fix, "install firecracker") {
		t.Errorf("without the program: %+v", p)
	}
}

// jailedLab is a lab whose machines are another user's.
func jailedLab(t *testing.T, s fakevmm.Script) *lab {
	testenv.Need(t, testenv.Root)
	l := newLab(t, s)
	jailer := filepath.Join(l.bin, "jailer")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, jailer); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if needsLoader(t, program) {
		t.Skip("the fake is this test, which is linked dynamically here: there are no libraries in a jail")
	}
	if err := os.Remove(l.opts.Program); err != nil { // jailer copies the program, by its real name
		t.Fatal(err)
	}
	if err := os.WriteFile(l.opts.Program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	const uid = 23456
	if err := os.Chown(filepath.Join(l.bin, "data.img"), uid, uid); err != nil {
		t.Fatal(err)
	}
	l.opts.Jail = &firecracker.Jail{Jailer: jailer, UID: uid, GID: uid, Cgroups: []string{"memory.max=1000000000", "pids.max=100"}}
	return l
}

// needsLoader reports whether a program is linked dynamically.
func needsLoader(t *testing.T, program string) bool {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

func TestJail(t *testing.T) {
	l := jailedLab(t, fakevmm.Script{})
	l.h.ID = strings.Repeat("long-id-", 8) // whose sockets have paths of more than 107 bytes
	m := l.start()
	conn, err := m.Dial(l.ctx(), fakevmm.GuestPort)
	if err != nil {
		t.Fatal(err)
	}
	client, err := guest.Connect(l.ctx(), conn, l.h.ID)
	if err != nil {
		t.Fatal(err)
	}
	inside := client.Sandbox()
	status, err := atoll.ReadFile(l.ctx(), inside, "/kernel")
	if err != nil || string(status) != "vmlinux" {
		t.Errorf("its kernel is %q, %v", status, err)
	}
	if _, err := atoll.Files(inside).Stat(l.ctx(), "/etc/passwd"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it sees the host's files: %v", err)
	}
	client.Close()
	pids := processes(l.h.Dir)
	if len(pids) < 2 {
		t.Errorf("processes: %v", pids)
	}
	seen := false
	for _, p := range pids {
		pid, _, _ := strings.Cut(p, " ")
		text, _ := os.ReadFile("/proc/" + pid + "/status")
		seen = seen || strings.Contains(string(text), "\nUid:\t23456\t23456\t23456\t23456\nGid:\t23456")
	}
	if !seen {
		t.Errorf("none of them is another user's: %v", pids)
	}
	m.Kill()
	l.nothingLeft()
	console, _ := os.ReadFile(l.h.Console)
	if want := "cgroups [memory.max=1000000000 pids.max=100] of version 2"; !strings.Contains(string(console), want) {
		t.Errorf("jailer says %q", console)
	}
}

func TestJailedSnapshot(t *testing.T) { testSnapshot(t, jailedLab(t, fakevmm.Script{})) }

func TestJailEndsWithItsStarter(t *testing.T) { testStarter(t, jailedLab(t, fakevmm.Script{})) }

func TestJailFails(t *testing.T) {
	for name, c := range map[string]struct {
		change func(l *lab)
		kind   atoll.Kind
		say    string
	}{
		"no jailer":    {func(l *lab) { l.opts.Jail.Jailer = "/there/is/none" }, atoll.ErrUnavailable, "install firecracker"},
		"another name": {func(l *lab) { l.opts.Program = "/bin/false" }, atoll.ErrInvalid, "rename the program"},
		"no disk":      {func(l *lab) { l.h.Disks[1].Path = "/there/is/none" }, atoll.ErrInvalid, "/there/is/none"},
		"root's disk": {func(l *lab) {
			if err := os.Chmod(filepath.Join(l.bin, "root.img"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, atoll.ErrInvalid, "permission denied"},
		"jailer dies": {func(l *lab) { l.opts.Jail.Jailer = "/bin/false" }, atoll.ErrUnavailable, "exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			l := jailedLab(t, fakevmm.Script{})
			c.change(l)
			wantKind(t, l.machine().Start(l.ctx()), c.kind, c.say)
			l.nothingLeft()
		})
	}
	l := newLab(t, fakevmm.Script{})
	for _, j := range []firecracker.Jail{{UID: 0, GID: 5}, {UID: 5, GID: 0}, {UID: 5, GID: 5, CgroupVersion: 3}} {
		if _, err := firecracker.New(firecracker.Options{Jail: &j}).New(&l.h); atoll.KindOf(err) != atoll.ErrInvalid {
			t.Errorf("%+v: %v", j, err)
		}
	}
}

// A jailed process may replace its sockets by other files.
func TestSocketsLeadNowhereElse(t *testing.T) {
	dir := t.TempDir()
	other, err := net.Listen("unix", filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	root := filepath.Join(dir, "root")
	if err := errors.Join(os.Mkdir(root, 0o700), os.Symlink("../other", filepath.Join(root, "v.sock")), os.WriteFile(filepath.Join(root, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name := range maps.Keys(map[string]bool{"v.sock": true, "file": true, "none": true}) {
		if conn, err := firecracker.Connect(context.Background(), root, name); err == nil {
			conn.Close()
			t.Errorf("connected to %s", name)
		}
	}
	if conn, err := firecracker.Connect(context.Background(), dir, "other"); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}
}
