//go:build unix && !linux

package fakevmm

import (
	"errors"
	"io"

	"github.com/seed46cd37a8/atoll/machine/vm"
)

func (m *Machine) bootMachine(*vm.Hardware, io.Writer, func(error)) (vm.Machine, error) {
	return nil, errors.New("there are machines of QEMU's on Linux only")
}
