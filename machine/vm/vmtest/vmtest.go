// Package vmtest is the suite that every vm.Driver passes, with Atoll guests (package guest) in its
// machines.
package vmtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// A Lab holds the driver and the hardware for the suite.
type Lab struct {
	Driver vm.Driver
	// Hardware returns a machine whose guest comes up, with a disk "root", or a root archive, that
	// has a shell and the usual small programs. The suite adds ID, Dir and Console.
	Hardware func(t testing.TB) *vm.Hardware
	// Dialled means that the guest takes no Setup, since it serves its sandbox at once.
	Dialled bool
}

// bootTimeout bounds the boot of a guest that is not emulated.
const bootTimeout = 20 * time.Second

// Run runs the suite.
func Run(t *testing.T, lab Lab) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *testEnv)
	}{
		{"A guest comes up, takes its setup, runs commands, and powers off", testLife},
		{"Connections carry much, at once, in both directions, and half-close", testTraffic},
		{"A port where nothing listens is unavailable, and a call ends with its context", testNoListener},
		{"A machine killed at once leaves nothing", testKill},
		{"A guest that crashes differs from one that powers off", testCrash},
		{"A machine that is paused stands still", testPause},
		{"Invalid hardware is refused", testInvalidHardware},
		{"The console is appended to", testConsole},
		{"A disk keeps what was written to it", testDisks},
		{"A directory can be shared, whatever its name", testShares},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, &testEnv{lab, t}) })
	}
}

// A testEnv is the environment of one test.
type testEnv struct {
	lab Lab
	t   *testing.T
}

// sandboxID is the id of the sandbox in machines of the suite.
const sandboxID = "0123456789abcdef0123456789abcdef"

// bootContext returns a context that ends if the machine takes far too long.
func (r *testEnv) bootContext() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), testenv.Scale(vm.Scale(r.lab.Driver.Caps(), bootTimeout)))
	r.t.Cleanup(cancel)
	return ctx
}

// newHardware returns the hardware of a new machine.
func (r *testEnv) newHardware() *vm.Hardware {
	r.t.Helper()
	dir, err := os.MkdirTemp("", "vm") // t.TempDir's path would be too long for a socket
	if err != nil {
		r.t.Fatal(err)
	}
	h := r.lab.Hardware(r.t)
	h.ID, h.Dir, h.Console = filepath.Base(dir), dir, filepath.Join(r.t.TempDir(), "console.log")
	r.t.Cleanup(func() {
		if r.t.Failed() {
			text, _ := os.ReadFile(h.Console)
			r.t.Logf("the console: %s", text[max(0, len(text)-4<<10):])
		}
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			r.t.Errorf("the machine has left %v, %v", left, err)
		}
		_ = os.RemoveAll(dir)
	})
	return h
}

// startMachine starts a machine, and kills it when the test ends.
func (r *testEnv) startMachine(h *vm.Hardware) vm.Machine {
	r.t.Helper()
	m, err := r.lab.Driver.New(h)
	if err != nil {
		r.t.Fatalf("New: %v", err)
	}
	if err := m.Start(r.bootContext()); err != nil {
		r.t.Fatalf("Start: %v", err)
	}
	r.t.Cleanup(func() {
		if err := m.Kill(); err != nil {
			r.t.Errorf("Kill: %v", err)
		}
	})
	return m
}

// sendSetup sends the guest its setup, after the changes.
func (r *testEnv) sendSetup(m vm.Machine, change ...func(*guest.Setup)) guest.Reply {
	r.t.Helper()
	entropy := make([]byte, 32)
	_, _ = rand.Read(entropy)
	setup := guest.Setup{
		Config: guest.Config{ID: sandboxID, Workdir: "/work"}, Hostname: "box", Time: time.Now().UnixNano(), Entropy: entropy,
		Root: guest.Root{Disk: "root"},
	}
	for _, c := range change {
		c(&setup)
	}
	return r.sendOrder(m, guest.Order{Setup: &setup})
}

// sendOrder sends an order to the guest.
func (r *testEnv) sendOrder(m vm.Machine, o guest.Order) guest.Reply {
	r.t.Helper()
	conn, err := m.Dial(r.bootContext(), vm.PortControl)
	if err != nil {
		r.t.Fatalf("Dial the control port: %v", err)
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(o); err != nil {
		r.t.Fatal(err)
	}
	var reply guest.Reply
	if err := json.NewDecoder(conn).Decode(&reply); err != nil {
		r.t.Fatalf("the guest's answer: %v", err)
	}
	return reply
}

// openSandbox returns the sandbox in a machine, after sending its guest the setup.
func (r *testEnv) openSandbox(m vm.Machine, change ...func(*guest.Setup)) atoll.Sandbox {
	r.t.Helper()
	if !r.lab.Dialled {
		if reply := r.sendSetup(m, change...); reply.Kind != "" || reply.Message != "" {
			r.t.Fatalf("the guest says: %s", reply.Message)
		}
	}
	info := atoll.Info{Name: "guest"}
	c, err := client.New(r.t.Context(), client.Options{Info: &info, Dial: func(ctx context.Context) (net.Conn, error) { return m.Dial(ctx, vm.PortAPI) }})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c.Sandbox(sandboxID)
}

// commandOutput returns the output of a command.
func (r *testEnv) commandOutput(sb atoll.Sandbox, args ...string) string {
	r.t.Helper()
	out, err := atoll.Output(r.bootContext(), sb, &atoll.Command{Args: args})
	if err != nil {
		r.t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

func testLife(t *testing.T, r *testEnv) {
	m := r.startMachine(r.newHardware())
	sb := r.openSandbox(m)
	if out := r.commandOutput(sb, "sh", "-c", "echo hello && pwd"); out != "hello\n/work\n" {
		t.Errorf("it prints %q", out)
	}
	if !r.lab.Dialled {
		if out := r.commandOutput(sb, "sh", "-c", "cat /proc/sys/kernel/hostname; touch /new && ls -d /new"); out != "box\n/new\n" {
			t.Errorf("it prints %q", out)
		}
		if reply := r.sendSetup(m); reply.Kind != atoll.ErrConflict {
			t.Errorf("a second setup: %+v", reply)
		}
	}
	if !r.lab.Dialled && !r.lab.Driver.Caps().Root { // else the clock is everybody's
		checkClock(t, r, m, sb)
	}
	if err := m.Stop(r.bootContext()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if err := m.Wait(r.bootContext()); err != nil {
		t.Errorf("Wait: %v", err)
	}
	if _, err := m.Dial(r.bootContext(), vm.PortAPI); atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("Dial after the end: %v", err)
	}
	for range 2 {
		if err := m.Kill(); err != nil {
			t.Errorf("Kill: %v", err)
		}
	}
}

// checkClock checks that the guest sets a clock which is behind when it learns the time, and that
// no clock goes back for that.
func checkClock(t *testing.T, r *testEnv, m vm.Machine, sb atoll.Sandbox) {
	now := time.Now()
	for _, tt := range []struct {
		name        string
		is, said    time.Time
		from, until time.Time
	}{
		{"an hour behind", now.Add(-time.Hour), now, now, now.Add(30 * time.Minute)},
		{"an hour ahead", now.Add(time.Hour), now, now.Add(time.Hour), now.Add(2 * time.Hour)},
	} {
		for _, o := range []guest.Order{{Time: tt.is.UnixNano()}, {Count: true, Now: tt.said.UnixNano()}} {
			if reply := r.sendOrder(m, o); reply.Kind != "" || reply.Message != "" {
				t.Errorf("%s: %+v: %s", tt.name, o, reply.Message)
			}
		}
		seconds, err := strconv.ParseInt(strings.TrimSpace(r.commandOutput(sb, "date", "+%s")), 10, 64)
		if got := time.Unix(seconds, 0); err != nil || got.Before(tt.from.Truncate(time.Second)) || got.After(tt.until) {
			t.Errorf("%s: the clock says %v, %v; want one from %v to %v", tt.name, got, err, tt.from, tt.until)
		}
	}
}

func testTraffic(t *testing.T, r *testEnv) {
	sb := r.openSandbox(r.startMachine(r.newHardware()))
	const size, many = 1 << 20, 8
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			data := make([]byte, size)
			_, _ = rand.Read(data)
			out, err := atoll.Output(r.bootContext(), sb, &atoll.Command{Args: []string{"cat"}, Stdin: bytes.NewReader(data)})
			if err != nil || !bytes.Equal(out, data) {
				t.Errorf("%d of %d bytes came back, %v", len(out), size, err)
			}
		})
	}
	all.Wait()
}

func testNoListener(t *testing.T, r *testEnv) {
	m := r.startMachine(r.newHardware())
	early, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := m.Dial(early, vm.PortAPI); err == nil || !errors.Is(err, context.DeadlineExceeded) && atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("Dial before the guest is up: %v", err)
	}
	if err := m.Wait(early); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait: %v", err)
	}
	r.openSandbox(m)
	ctx, cancel := context.WithTimeout(t.Context(), vm.Scale(r.lab.Driver.Caps(), time.Second))
	defer cancel()
	if conn, err := m.Dial(ctx, 4711); atoll.KindOf(err) != atoll.ErrUnavailable && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Dial where nothing listens: %v, %v", conn, err)
	}
}

func testKill(t *testing.T, r *testEnv) {
	m := r.startMachine(r.newHardware())
	begin := time.Now()
	if err := m.Kill(); err != nil { // long before the guest is up
		t.Errorf("Kill: %v", err)
	}
	if took := time.Since(begin); took > testenv.Scale(10*time.Second) {
		t.Errorf("Kill took %s", took)
	}
	if err := m.Wait(r.bootContext()); err != nil {
		t.Errorf("Wait: %v", err)
	}

	m = r.startMachine(r.newHardware())
	sb := r.openSandbox(m)
	dialled := make(chan error, 1)
	go func() {
		_, err := atoll.Output(context.Background(), sb, &atoll.Command{Args: []string{"sleep", "1000"}})
		dialled <- err
	}()
	time.Sleep(100 * time.Millisecond)
	if err := m.Kill(); err != nil {
		t.Errorf("Kill: %v", err)
	}
	select {
	case err := <-dialled:
		if err == nil {
			t.Error("a command has ended well in a machine that was killed")
		}
	case <-time.After(testenv.Scale(30 * time.Second)):
		t.Error("a call to a machine that was killed does not end")
	}
}

func testCrash(t *testing.T, r *testEnv) {
	if r.lab.Driver.Caps().Root {
		t.Skip("all machines share the kernel")
	}
	m := r.startMachine(r.newHardware())
	sb := r.openSandbox(m)
	go func() { // nobody answers it
		_ = atoll.Run(r.bootContext(), sb, &atoll.Command{Args: []string{"sh", "-c", "echo c > /proc/sysrq-trigger"}})
	}()
	err := m.Wait(r.bootContext())
	if err == nil || r.bootContext().Err() != nil || !strings.Contains(err.Error(), "kernel panic") {
		t.Errorf("Wait: %v", err)
	}
}

func testPause(t *testing.T, r *testEnv) {
	if !r.lab.Driver.Caps().Pause {
		m := r.startMachine(r.newHardware())
		for op, err := range map[string]error{"Pause": m.Pause(r.bootContext()), "Resume": m.Resume(r.bootContext())} {
			if atoll.KindOf(err) != atoll.ErrUnsupported {
				t.Errorf("%s: %v", op, err)
			}
		}
		return
	}
	m := r.startMachine(r.newHardware())
	sb := r.openSandbox(m)
	if err := m.Pause(r.bootContext()); err != nil {
		t.Fatalf("Pause: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- atoll.Run(r.bootContext(), sb, &atoll.Command{Args: []string{"true"}}) }()
	select {
	case err := <-done:
		t.Errorf("while it is paused it answers, %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	if err := m.Resume(r.bootContext()); err != nil {
		t.Fatalf("Resume: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("after that: %v", err)
	}
}

func testInvalidHardware(t *testing.T, r *testEnv) {
	changes := map[string]func(*vm.Hardware){
		"no memory":     func(h *vm.Hardware) { h.Memory = 0 },
		"no CPU":        func(h *vm.Hardware) { h.CPUs = 0 },
		"a disk twice":  func(h *vm.Hardware) { h.Disks = []vm.Disk{{ID: "x", Path: "/x"}, {ID: "x", Path: "/x"}} },
		"an old CID":    func(h *vm.Hardware) { h.CID = 2 },
		"no identifier": func(h *vm.Hardware) { h.ID = "" },
	}
	if r.lab.Driver.Caps().Sizeless {
		delete(changes, "no memory")
		delete(changes, "no CPU")
	}
	for what, change := range changes {
		h := r.newHardware()
		change(h)
		if m, err := r.lab.Driver.New(h); atoll.KindOf(err) != atoll.ErrInvalid && atoll.KindOf(err) != atoll.ErrUnsupported {
			t.Errorf("%s: %v, %v", what, m, err)
		}
	}
	h := r.newHardware()
	if h.Root != "" {
		h.Root = filepath.Join(t.TempDir(), "gone.tar")
	} else {
		h.Disks = append(h.Disks, vm.Disk{ID: "gone", Path: filepath.Join(t.TempDir(), "gone.img")})
	}
	m, err := r.lab.Driver.New(h)
	if err == nil {
		if err = m.Start(r.bootContext()); err == nil {
			_ = m.Kill()
		}
	}
	if err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("with a disk that is not there: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if m, err = r.lab.Driver.New(r.newHardware()); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Start with a context that has ended: %v", err)
	}
}

func testConsole(t *testing.T, r *testEnv) {
	h := r.newHardware()
	said := fmt.Sprintf("said before %d\n", time.Now().UnixNano())
	if err := os.WriteFile(h.Console, []byte(said), 0o600); err != nil {
		t.Fatal(err)
	}
	m := r.startMachine(h)
	r.openSandbox(m)
	_ = m.Kill()
	text, err := os.ReadFile(h.Console)
	if err != nil || !strings.HasPrefix(string(text), said) {
		t.Errorf("the console has %.100q, %v", text, err)
	}
	if info, err := os.Stat(h.Console); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others can read the console: %v, %v", info.Mode(), err)
	}
}

func testDisks(t *testing.T, r *testEnv) {
	if r.lab.Dialled {
		t.Skip("the guest takes no setup")
	}
	if len(r.lab.Driver.Caps().Formats) == 0 {
		t.Skip("there are no disks")
	}
	path := filepath.Join(t.TempDir(), "scratch.img")
	f, err := os.Create(path)
	if err == nil {
		err = errors.Join(f.Truncate(1<<30), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, end := range []string{"stop", "kill", "look"} {
		h := r.newHardware()
		h.Disks = append(h.Disks, vm.Disk{ID: "scratch", Path: path})
		m := r.startMachine(h)
		sb := r.openSandbox(m, func(s *guest.Setup) {
			s.Root.Upper = "scratch"
			s.Mounts = []guest.MachineDir{{Target: "/tmp/mine", Size: 1 << 20}}
		})
		if out := r.commandOutput(sb, "sh", "-c", "cat /kept/* 2>/dev/null; mkdir -p /kept; echo "+end+" > /kept/"+end+"; sync; df -k /tmp/mine | tail -1"); !strings.HasPrefix(out, []string{"", "stop\n", "kill\nstop\n"}[i]) || !strings.Contains(out, "1024") {
			t.Errorf("in life %d it prints %q", i, out)
		}
		if end == "stop" {
			if err := m.Stop(r.bootContext()); err != nil {
				t.Errorf("Stop: %v", err)
			}
		}
		if err := m.Kill(); err != nil {
			t.Errorf("Kill: %v", err)
		}
	}
	m := r.startMachine(r.newHardware())
	if reply := r.sendSetup(m, func(s *guest.Setup) { s.Root.Upper = "none" }); !strings.Contains(reply.Message, `no disk "none"`) {
		t.Errorf("of a disk that is not there the guest says %+v", reply)
	}
}

func testShares(t *testing.T, r *testEnv) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("shared\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h := r.newHardware()
	h.Shares = []vm.Share{{Tag: "mine", Dir: dir}}
	if !r.lab.Driver.Caps().Shares {
		if m, err := r.lab.Driver.New(h); atoll.KindOf(err) != atoll.ErrUnsupported {
			t.Errorf("New: %v, %v", m, err)
		}
		return
	}
	m := r.startMachine(h)
	sb := r.openSandbox(m, func(s *guest.Setup) { s.Mounts = []guest.MachineDir{{Target: "/mine", Share: "mine"}} })
	if out := r.commandOutput(sb, "sh", "-c", "cat /mine/file; echo back > /mine/new"); out != "shared\n" {
		t.Errorf("it prints %q", out)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "new")); err != nil || string(text) != "back\n" {
		t.Errorf("what was written to it: %q, %v", text, err)
	}
	_ = m.Kill()

	h = r.newHardware()
	h.Shares = []vm.Share{{Tag: "mine", Dir: dir}, {Tag: "gone", Dir: filepath.Join(dir, "gone")}}
	if m, err := r.lab.Driver.New(h); err != nil {
		t.Fatal(err)
	} else if err = m.Start(r.bootContext()); err == nil {
		t.Error("a directory that is not there is shared")
		_ = m.Kill()
	}

	h = r.newHardware()
	h.Shares = []vm.Share{{Tag: "mine", Dir: dir, ReadOnly: true}}
	if m, err := r.lab.Driver.New(h); !r.lab.Driver.Caps().Locked {
		if atoll.KindOf(err) != atoll.ErrUnsupported {
			t.Errorf("New: %v, %v", m, err)
		}
	} else if err != nil {
		t.Fatal(err)
	} else if err = m.Start(r.bootContext()); err != nil { // it may need a directory that cannot be written to
		if atoll.KindOf(err) != atoll.ErrUnsupported {
			t.Errorf("Start: %v", err)
		}
	} else {
		defer m.Kill()
		sb = r.openSandbox(m, func(s *guest.Setup) { s.Mounts = []guest.MachineDir{{Target: "/mine", Share: "mine"}} })
		if out := r.commandOutput(sb, "sh", "-c", "cat /mine/file; echo back > /mine/new || echo refused"); out != "shared\nrefused\n" {
			t.Errorf("it prints %q", out)
		}
	}
}
