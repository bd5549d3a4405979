package vmengine

import (
	"context"
	"log/slog"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/qemu"
)

func qemuCaps() vm.Caps { return qemu.Caps() }

func findQEMU(program string) (string, error) { return qemu.Find(program) }

func (d Driver) qemuOptions(kernel string, log *slog.Logger) qemu.Options {
	return qemu.Options{Program: d.Program, Accel: d.Accel, Kernel: kernel, Cache: d.Cache, Log: log}
}

func (d Driver) probeQEMU(ctx context.Context, kernel string, log *slog.Logger) atoll.Probe {
	return qemu.Probe(ctx, d.qemuOptions(kernel, log))
}

func (d Driver) openQEMU(ctx context.Context, kernel string, log *slog.Logger) (vm.Driver, error) {
	return qemu.New(ctx, d.qemuOptions(kernel, log))
}
