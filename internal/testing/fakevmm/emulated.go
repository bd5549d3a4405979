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

// emulated is a machine of QEMU's behind Firecracker's API. The guest is reached through
// its serial port, and not by vsock: it takes both.
type emulated struct {
	machine *Machine
	vm      vm.Machine
}

// powerOn boots what the API was told.
func (e *emulated) powerOn(f *fake) error {
	pid, err := os.Readlink("/proc/self") // not the one that it has in a namespace
	if err != nil {
		return err
	}
	dir := "/proc/" + pid + "/cwd" // who is jailed cannot go to where that is
	abs := func(path string) string { return filepath.Join(dir, path) }
	h := &vm.Hardware{
		ID: f.id, Dir: dir, Console: abs("console"), CPUs: f.config.CPUs, Memory: atoll.Bytes(f.config.Memory) << 20,
		Kernel: abs(f.boot.Kernel), Cmdline: strings.Fields(f.boot.Args),
	}
	if f.boot.Initrd != "" {
		h.Initrd = abs(f.boot.Initrd)
	}
	for i, d := range f.drives { // whose ids guests of Firecracker do not see
		h.Disks = append(h.Disks, vm.Disk{ID: strconv.Itoa(i), Path: abs(d.Path), ReadOnly: d.ReadOnly})
	}
	e.vm, err = e.machine.bootMachine(h, os.Stdout, func(err error) {
		if err != nil && !strings.Contains(err.Error(), "the guest has crashed") { // which is how it ends for Firecracker in any case
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	})
	return err
}

// dialTime is how long the machine may take to say whether somebody listens.
var dialTime = testenv.Scale(5 * time.Second)

func (e *emulated) portServer(port uint32) func(net.Conn, *bufio.Reader) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	inner, err := e.vm.Dial(ctx, port)
	if err != nil {
		return nil
	}
	return func(conn net.Conn, in *bufio.Reader) { joinConns(conn, in, inner) }
}

func (e *emulated) setPaused(paused bool) error {
	if paused {
		return e.vm.Pause(context.Background())
	}
	return e.vm.Resume(context.Background())
}

func (e *emulated) pressCtrlAltDel() {} // there is no keyboard

func (e *emulated) readMemory() (string, error) {
	return "", errors.New("this fake has no snapshots of machines")
}
func (e *emulated) setMemory(string) {}
