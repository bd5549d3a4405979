//go:build unix && !linux

package fakevmm

import (
	"errors"
	"io"

	"github.com/seed46cd37a8/atoll/machine/vm"
)

func (m *Machine) bootMachine(*vm.Hardware, io.Writer, func(error)) (vm.Machine, error) {
	return nil, errors.New("QEMU machines are available only on Linux")
}
