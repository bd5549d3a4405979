//go:build linux

package fakevmm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// A qemuComputer is a QEMU machine behind Firecracker's API. The fake reaches the guest through its
// serial port instead of vsock; the guest serves both.
type qemuComputer struct {
	machine *Machine
	vm      vm.Machine
}

// powerOn boots the hardware that API requests have configured.
func (e *qemuComputer) powerOn(f *fakeFirecracker) error {
	pid, err := os.Readlink("/proc/self") // the pid of the host, not of a PID namespace
	if err != nil {
		return err
	}
	dir := "/proc/" + pid + "/cwd" // a jailed user cannot open the path of the directory
	abs := func(path string) string { return filepath.Join(dir, path) }
	h := &vm.Hardware{
		ID: f.id, Dir: dir, Console: abs("console"), CPUs: f.config.CPUs, Memory: atoll.Bytes(f.config.Memory) << 20,
		Kernel: abs(f.boot.Kernel), Cmdline: strings.Fields(f.boot.Args),
	}
	if f.boot.Initrd != "" {
		h.Initrd = abs(f.boot.Initrd)
	}
	for i, d := range f.drives { // Firecracker does not show drive ids to the guest
		h.Disks = append(h.Disks, vm.Disk{ID: strconv.Itoa(i), Path: abs(d.Path), ReadOnly: d.ReadOnly})
	}
	e.vm, err = e.machine.bootMachine(h, os.Stdout, func(err error) {
		if err != nil && !strings.Contains(err.Error(), "the guest has crashed") { // a normal end with Firecracker
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	})
	return err
}

// dialTime limits the time of a connection to a port of the guest.
var dialTime = testenv.Scale(5 * time.Second)

func (e *qemuComputer) portServer(port uint32) func(net.Conn, *bufio.Reader) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	inner, err := e.vm.Dial(ctx, port)
	if err != nil {
		return nil
	}
	return func(conn net.Conn, in *bufio.Reader) { joinConns(conn, in, inner) }
}

func (e *qemuComputer) setPaused(paused bool) error {
	if paused {
		return e.vm.Pause(context.Background())
	}
	return e.vm.Resume(context.Background())
}

func (e *qemuComputer) pressCtrlAltDel() {} // QEMU's machine has no keyboard

func (e *qemuComputer) readMemory() (string, error) {
	return "", errors.New("this fake has no snapshots of QEMU machines")
}
func (e *qemuComputer) setMemory(string) {}
