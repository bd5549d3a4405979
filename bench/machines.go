//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/mux"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
)

// The rows of the comparisons of virtual machines, besides viaAPI.
const (
	bareQEMU  = "QEMU, bare, with the same kernel, initrd and root disk, until its guest answers"
	machineIn = "a command in a machine, API client and server"
)

const machinesTitle = "Virtual machines"

// machineRounds limits the rounds of the comparisons of virtual machines, because an emulated boot
// takes seconds.
const machineRounds = 10

// maxGuestSize limits the size of the guest program, in bytes.
const maxGuestSize = 12 << 20

// measureMachines compares the provider microvm with bare QEMU.
func (b *bench) measureMachines(ctx context.Context) (err error) {
	if _, err := exec.LookPath(qemuProgram); err != nil {
		b.table.missing = append(b.table.missing, "virtual machines: "+err.Error())
		return nil
	}
	s, err := startServer(ctx, b, "machines", "ATOLL_PROVIDER=microvm")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stopServer()) }()
	fmt.Fprintln(os.Stderr, "building the bundle of the machines")
	if out, err := b.atollCommand(ctx, s.state, "image", "build", "--quiet").CombinedOutput(); err != nil {
		return fmt.Errorf("atoll image build: %w: %s", err, out)
	}
	live, err := s.Create(ctx, &atoll.Spec{})
	if err != nil {
		return err
	}
	kind, err := b.addMachineFacts(live)
	if err != nil {
		return err
	}
	bare, err := newBareMachine(ctx, s, live)
	if err != nil {
		return err
	}
	goals := []goal{}
	if kind == "kvm" {
		goals = append(goals, goal{row: machineIn, millis: 5})
	}
	err = b.compareMethods(ctx, "virtual machines ("+kind+"): a command", goals, []method{{machineIn, func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		_, err := atoll.Output(ctx, live, &atoll.Command{Args: echoArgs})
		return time.Since(start), err
	}}})
	if err != nil {
		return err
	}
	if err := live.Remove(ctx, atoll.RemoveVolumes()); err != nil {
		return err
	}
	create := func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		sb, err := s.Create(ctx, &atoll.Spec{})
		took := time.Since(start)
		if err == nil {
			err = sb.Remove(ctx, atoll.RemoveVolumes())
		}
		return took, err
	}
	return b.compareRounds(ctx, min(b.rounds, machineRounds), "virtual machines ("+kind+"): created until they run",
		[]goal{{row: viaAPI, than: bareQEMU, most: 1.25}}, []method{{bareQEMU, bare.bootMachine}, {viaAPI, create}})
}

// addMachineFacts adds the memory and the guest size of a machine to the table. It returns "kvm" or
// "emulated".
func (b *bench) addMachineFacts(live atoll.Sandbox) (kind string, err error) {
	qemu, kind, err := findQEMU(live.ID())
	if err != nil {
		return "", err
	}
	family, err := listFamily(qemu)
	if err != nil {
		return "", err
	}
	used, n := sumPSS(family, nil)
	b.table.addFact(fact{title: machinesTitle, name: fmt.Sprintf("an idle machine (%s): memory (PSS) of its %d processes", kind, n), value: formatMiB(used)})
	guest, err := os.Stat(filepath.Join(filepath.Dir(b.atoll), "atoll-guest"))
	if err != nil {
		return "", err
	}
	b.table.addFact(fact{machinesTitle, "the guest's program", formatMiB(guest.Size()), "<= " + formatMiB(maxGuestSize), guest.Size() <= maxGuestSize})
	return kind, nil
}

// findQEMU returns the QEMU process of a sandbox, and "kvm" or "emulated".
func findQEMU(id string) (pid int, kind string, err error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, "", err
	}
	for _, dir := range dirs {
		text, err := os.ReadFile(dir + "/cmdline")
		if err != nil || !strings.Contains(string(text), "\x00atoll-"+id) {
			continue
		}
		kind = "emulated"
		if strings.Contains(string(text), "\x00kvm\x00") {
			kind = "kvm"
		}
		pid, err = strconv.Atoi(filepath.Base(dir))
		return pid, kind, err
	}
	return 0, "", fmt.Errorf("no QEMU runs sandbox %s", id)
}

// listFamily returns the parent of a process and all descendants of that parent.
func listFamily(pid int) (map[int]string, error) {
	parent := readParent(pid)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	all := map[int]string{parent: ""}
	for grown := true; grown; {
		grown = false
		for _, dir := range dirs {
			child, _ := strconv.Atoi(filepath.Base(dir)) // the pattern matches numbers only
			if _, known := all[child]; known {
				continue
			}
			if _, ours := all[readParent(child)]; ours {
				all[child], grown = "", true
			}
		}
	}
	return all, err
}

// readParent returns the parent of a process, or 0 if the process has ended.
func readParent(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "PPid:"); ok {
			parent, _ := strconv.Atoi(strings.TrimSpace(value))
			return parent
		}
	}
	return 0
}

const qemuProgram = "qemu-system-x86_64"

// A bareMachine runs QEMU directly.
type bareMachine struct{ args []string }

// newBareMachine returns a machine that boots the same files as live, with the same kernel command
// line.
func newBareMachine(ctx context.Context, s *server, live atoll.Sandbox) (*bareMachine, error) {
	store, err := bundle.Open(filepath.Join(s.state, "bundles"), bundle.Options{})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	im, err := store.Get("debian")
	if err != nil {
		return nil, err
	}
	cmdline, err := atoll.Output(ctx, live, &atoll.Command{Args: []string{"cat", "/proc/cmdline"}})
	if err != nil {
		return nil, err
	}
	accel := []string{"-accel", "kvm", "-cpu", "host"}
	if strings.Contains(string(cmdline), "tsc_early_khz") { // only emulated machines have this argument
		accel = []string{"-accel", "tcg,thread=multi", "-cpu", "max"}
	}
	return &bareMachine{append(accel,
		"-M", "microvm,rtc=on", "-m", "256", "-smp", "2", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-global", "virtio-mmio.force-legacy=false", "-kernel", im.Path(im.Kernel.File), "-initrd", im.Path(im.Initrd.File), "-append", strings.TrimSpace(string(cmdline)),
		"-chardev", "null,id=console", "-serial", "chardev:console",
		"-drive", "if=none,id=root,format=raw,readonly=on,file="+im.Path(im.Root().File), "-device", "virtio-blk-device,drive=root",
		"-device", "virtio-serial-device,id=ports", "-chardev", "socket,id=line,fd=3", "-device", "virtserialport,bus=ports.0,chardev=line,name="+mux.Name,
	)}, nil
}

// bootMachine starts QEMU and kills it when the guest has answered. It returns the time in between.
func (m *bareMachine) bootMachine(ctx context.Context) (time.Duration, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "line"), os.NewFile(uintptr(fds[1]), "qemu")
	cmd := exec.CommandContext(ctx, qemuProgram, m.args...)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = &atoll.Tail{Limit: 4 << 10}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	start := time.Now()
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		ours.Close()
		return 0, err
	}
	bounded, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	guest, err := mux.Host(bounded, ours)
	took := time.Since(start)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, cmd.Stderr.(*atoll.Tail).Bytes())
	}
	return took, guest.Close()
}
