//go:build linux || darwin || windows

package config

import (
	"cmp"
	"errors"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/microvm"
)

func openMicroVM(cfg *Config, opts Options) (atoll.Provider, error) {
	bundles, err := cfg.Bundles(opts.Log)
	if err != nil {
		return nil, err
	}
	o := machineOptions(cfg, cfg.MicroVM.Driver, opts)
	o.Dir, o.Bundles, o.Default, o.Spare = filepath.Join(cfg.StateDir, "microvm"), bundles, cfg.MicroVM.Bundle, opts.Server
	p, err := microvm.New(o)
	if err != nil {
		return nil, errors.Join(err, bundles.Close())
	}
	return &withBundles{atoll.ProviderLayer{Provider: p}, bundles.Close}, nil
}

// machineOptions returns the options of machines of a driver.
func machineOptions(cfg *Config, driver string, opts Options) microvm.Options {
	o := microvm.Options{Driver: cmp.Or(strings.TrimPrefix(driver, auto), microvm.DefaultDriver()), Debug: cfg.MicroVM.Debug, Log: opts.Log}
	switch o.Driver {
	case "firecracker":
		f := cfg.Firecracker.driverOptions()
		o.Program, o.Jail = f.Program, f.Jail
	case "vz":
		o.Program = cfg.MicroVM.VFKit
	case "wsl2": // Windows knows the path of wsl.exe
	default:
		o.Program, o.Accel = cfg.MicroVM.QEMU, strings.TrimPrefix(cfg.MicroVM.Accel, auto)
	}
	return o
}

// withBundles closes the bundles after the provider that uses them.
type withBundles struct {
	atoll.ProviderLayer
	after func() error
}

func (p *withBundles) Close() error { return errors.Join(p.ProviderLayer.Close(), p.after()) }
