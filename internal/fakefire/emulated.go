//go:build linux

package fakefire

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/vm"
	"github.com/seed46cd37a8/atoll/vm/qemu"
)

// A Machine says what QEMU the machine of a fake runs on.
type Machine struct {
	Program string // an absolute path: the fake has no environment
	Accel   string // "kvm" or "tcg"
}

// emulated is a machine of QEMU's. The guest is reached through its serial port, and not
// by vsock: it takes both.
type emulated struct {
	machine *Machine
	vm      vm.Machine
}

// begin boots what the API was told.
func (e *emulated) begin(f *fake) error {
	d, err := qemu.New(context.Background(), qemu.Options{Program: e.machine.Program, Accel: e.machine.Accel})
	if err != nil {
		return err
	}
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
	if e.vm, err = d.New(h); err != nil {
		return err
	}
	if err := unix.Mkfifo(h.Console, 0o600); err != nil {
		return err
	}
	console, err := os.OpenFile(h.Console, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := e.vm.Start(context.Background()); err != nil {
		return err
	}
	printed := make(chan struct{})
	go func() {
		_, _ = io.Copy(os.Stdout, console)
		close(printed)
	}()
	go func() {
		err := e.vm.Wait(context.Background())
		_ = e.vm.Kill()
		<-printed
		if err != nil && !strings.Contains(err.Error(), "the guest has crashed") { // which is how it ends for Firecracker in any case
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}()
	return nil
}

// dialTime is how long the machine may take to say whether somebody listens.
const dialTime = 5 * time.Second

func (e *emulated) listens(port uint32) func(net.Conn, *bufio.Reader) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	inner, err := e.vm.Dial(ctx, port)
	if err != nil {
		return nil
	}
	return func(conn net.Conn, in *bufio.Reader) {
		defer inner.Close()
		var both sync.WaitGroup
		both.Go(func() { pour(inner, in, conn) })
		both.Go(func() { pour(conn, inner, inner) })
		both.Wait()
	}
}

// pour copies what comes from in, which reads src, to its end, and says so to dst.
func pour(dst net.Conn, in io.Reader, src net.Conn) {
	_, err := io.Copy(dst, in)
	half, ok := dst.(interface{ CloseWrite() error })
	if !ok || cmp.Or(err, half.CloseWrite()) != nil {
		dst.Close()
		src.Close()
	}
}

func (e *emulated) setPaused(paused bool) error {
	if paused {
		return e.vm.Pause(context.Background())
	}
	return e.vm.Resume(context.Background())
}

func (e *emulated) press() {} // there is no keyboard

func (e *emulated) memory() (string, error) {
	return "", errors.New("this fake has no snapshots of machines")
}
func (e *emulated) remember(string) {}
