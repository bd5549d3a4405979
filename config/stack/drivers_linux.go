package stack

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm/qemu"
)

// probeQEMU tries KVM with the kernel of sandboxes, if the bundle exists.
func probeQEMU(ctx context.Context, b *Builder) atoll.Probe {
	opts := qemu.Options{Program: b.MicroVM.QEMU, Accel: strings.TrimPrefix(b.MicroVM.Accel, "auto"), Cache: filepath.Join(b.StateDir, "microvm", "accel")}
	bundles, err := b.Bundles(slog.New(slog.DiscardHandler))
	if err != nil {
		return atoll.Probe{Reason: err.Error()}
	}
	defer bundles.Close()
	if b, err := bundles.Get(b.MicroVM.Bundle); err == nil {
		opts.Kernel = b.Path(b.Kernel.File)
	}
	return qemu.Probe(ctx, opts)
}
