//go:build linux

package qemu_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/qemu"
	"github.com/seed46cd37a8/atoll/machine/vm/vmtest"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

// A program that is not installed is no reason to try again.
func TestNotInstalled(t *testing.T) {
	_, err := qemu.Find("qemu-system-none")
	if !errors.Is(err, exec.ErrNotFound) || atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("got %v, want that it is not installed, and how to install it", err)
	}
}

func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("a dozen machines boot, which takes its time where they are emulated: too long for -short")
	}
	d, err := qemu.New(t.Context(), qemu.Options{Kernel: hardware(t).Kernel, Cache: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	vmtest.Run(t, vmtest.Lab{Driver: d, Hardware: hardware})
}

// hardware returns the hardware of a machine in which a guest comes up.
func hardware(t testing.TB) *vm.Hardware {
	t.Helper()
	testenv.Need(t, testenv.Program("qemu-system-x86_64", "qemu-system-x86"))
	store, err := bundle.Open(testenv.BundleStore(t), bundle.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	b, err := store.Get("debian")
	if err != nil {
		t.Fatal(err)
	}
	return &vm.Hardware{
		CPUs: 2, Memory: 256 << 20, Kernel: b.Path(b.Kernel.File), Initrd: b.Path(b.Initrd.File), Cmdline: []string{"quiet"},
		Disks: []vm.Disk{{ID: "root", Path: b.Path(b.Root().File), ReadOnly: true}},
	}
}

// A machine dies with the process that has started it, and with it the daemons of its
// shares.
func TestStarterKilled(t *testing.T) {
	if dir := os.Getenv("ATOLL_TEST_MACHINE"); dir != "" {
		keepMachine(t, dir)
	}
	dir, err := os.MkdirTemp("", "vm")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command(os.Args[0], "-test.run=^TestStarterKilled$")
	cmd.Env = append(os.Environ(), "ATOLL_TEST_MACHINE="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "started\n" {
		t.Fatalf("it says %q, %v", line, err)
	}
	if all := processes(t, dir); len(all) < 2 {
		t.Errorf("there are %q, not QEMU and virtiofsd", all)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for end := time.Now().Add(testenv.Scale(10 * time.Second)); len(processes(t, dir)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("they go on: %v", processes(t, dir))
		}
	}
	notes, err := filepath.Glob("/run/virtiofsd/.*" + filepath.Base(dir) + "*")
	if err != nil || len(notes) > 0 {
		t.Errorf("left behind: %v, %v", notes, err)
	}
}

func keepMachine(t *testing.T, dir string) {
	h := hardware(t)
	h.ID, h.Dir = filepath.Base(dir), dir
	h.Shares = []vm.Share{{Tag: "mine", Dir: dir}}
	d, err := qemu.New(t.Context(), qemu.Options{Accel: "tcg"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.New(h)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	fmt.Println("started")
	select {}
}

// An emulated machine goes before all others until its guest is up, and then no longer.
func TestHurry(t *testing.T) {
	testenv.Need(t, testenv.Root)
	h := hardware(t)
	h.Dir = t.TempDir()
	h.ID, h.Console = filepath.Base(h.Dir), filepath.Join(h.Dir, "console.log")
	d, err := qemu.New(t.Context(), qemu.Options{Accel: "tcg"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.New(h)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer m.Kill()
	if all := nice(t, h.ID); len(all) == 0 || slices.Min(all) != -20 {
		t.Errorf("as it starts its threads have %v", all)
	}
	conn, err := m.Dial(t.Context(), vm.PortControl) // as soon as the guest is up
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	for end := time.Now().Add(testenv.Scale(time.Minute)); ; time.Sleep(10 * time.Millisecond) {
		all := nice(t, h.ID)
		if len(all) > 0 && slices.Max(all) == 0 && slices.Min(all) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("when its guest is up its threads have %v", all)
		}
	}
}

// nice returns the nice values of the threads of the machine with that name.
func nice(t *testing.T, name string) (all []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/task/*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, stat := range stats {
		line, err := os.ReadFile(filepath.Join(filepath.Dir(stat), "cmdline"))
		if err != nil || !bytes.Contains(line, []byte("atoll-"+name+",")) {
			continue
		}
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		n, err := strconv.Atoi(fields[16]) // proc_pid_stat(5): the 19th, and two are before these
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

// processes returns the processes that have dir on their command line, except for this program's.
func processes(t *testing.T, dir string) (all []string) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if line, err := os.ReadFile(name); err == nil && bytes.Contains(line, []byte(dir)) {
			all = append(all, string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return all
}
