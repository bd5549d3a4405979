package config

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm/qemu"
)

// probeQEMU tries KVM with the kernel of sandboxes, if the bundle exists.
func probeQEMU(ctx context.Context, cfg *Config) atoll.Probe {
	opts := qemu.Options{Program: cfg.MicroVM.QEMU, Accel: strings.TrimPrefix(cfg.MicroVM.Accel, "auto"), Cache: filepath.Join(cfg.StateDir, "microvm", "accel")}
	bundles, err := cfg.Bundles(slog.New(slog.DiscardHandler))
	if err != nil {
		return atoll.Probe{Reason: err.Error()}
	}
	defer bundles.Close()
	if b, err := bundles.Get(cfg.MicroVM.Bundle); err == nil {
		opts.Kernel = b.Path(b.Kernel.File)
	}
	return qemu.Probe(ctx, opts)
}
