//go:build linux || darwin || windows

package stack

import (
	"cmp"
	"errors"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/provider/microvm"
)

func openMicroVM(b *Builder, opts Options) (atoll.Provider, error) {
	bundles, err := b.Bundles(opts.Log)
	if err != nil {
		return nil, err
	}
	o := machineOptions(b, b.MicroVM.Driver, opts)
	o.Dir, o.Bundles, o.Default, o.Spare = filepath.Join(b.StateDir, "microvm"), bundles, b.MicroVM.Bundle, opts.Server
	p, err := microvm.New(o)
	if err != nil {
		return nil, errors.Join(err, bundles.Close())
	}
	return &withBundles{atoll.ProviderLayer{Provider: p}, bundles.Close}, nil
}

// machineOptions returns the options of machines of a driver.
func machineOptions(b *Builder, driver string, opts Options) microvm.Options {
	o := microvm.Options{Driver: cmp.Or(strings.TrimPrefix(driver, config.Auto), microvm.DefaultDriver()), Debug: b.MicroVM.Debug, Log: opts.Log}
	switch o.Driver {
	case "firecracker":
		f := driverOptions(b.Firecracker)
		o.Program, o.Jail = f.Program, f.Jail
	case "vz":
		o.Program = b.MicroVM.VFKit
	case "wsl2": // Windows knows the path of wsl.exe
	default:
		o.Program, o.Accel = b.MicroVM.QEMU, strings.TrimPrefix(b.MicroVM.Accel, config.Auto)
	}
	return o
}

// withBundles closes the bundles after the provider that uses them.
type withBundles struct {
	atoll.ProviderLayer
	after func() error
}

func (p *withBundles) Close() error { return errors.Join(p.ProviderLayer.Close(), p.after()) }
