//go:build !linux

package vmengine

import (
	"context"
	"log/slog"
	"runtime"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// The driver for QEMU exists only on Linux.

func noQEMU() error {
	return atoll.Errorf("driver", QEMU, atoll.ErrUnavailable, "it is only available on Linux, current platform: %s", runtime.GOOS)
}

func qemuCaps() vm.Caps { return vm.Caps{} }

func findQEMU(string) (string, error) { return "", noQEMU() }

func (d Driver) probeQEMU(context.Context, string, *slog.Logger) atoll.Probe {
	return atoll.Probe{Reason: "the driver qemu is only available on Linux, current platform: " + runtime.GOOS, Fix: "on macOS use vz"}
}

func (d Driver) openQEMU(context.Context, string, *slog.Logger) (vm.Driver, error) {
	return nil, noQEMU()
}
