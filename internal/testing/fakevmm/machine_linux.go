package fakevmm

import (
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/qemu"
)

// bootMachine boots a QEMU machine and calls ended when it has ended. It creates a pipe at h.Console
// and copies its output to console.
func (m *Machine) bootMachine(h *vm.Hardware, console io.Writer, ended func(error)) (vm.Machine, error) {
	d, err := qemu.New(context.Background(), qemu.Options{Program: m.Program, Accel: m.Accel})
	if err != nil {
		return nil, err
	}
	machine, err := d.New(h)
	if err != nil {
		return nil, err
	}
	if err := unix.Mkfifo(h.Console, 0o600); err != nil {
		return nil, err
	}
	pipe, err := os.OpenFile(h.Console, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := machine.Start(context.Background()); err != nil {
		return nil, err
	}
	printed := make(chan struct{})
	go func() {
		_, _ = io.Copy(console, pipe)
		close(printed)
	}()
	go func() {
		err := machine.Wait(context.Background())
		_ = machine.Kill()
		<-printed
		ended(err)
	}()
	return machine, nil
}
