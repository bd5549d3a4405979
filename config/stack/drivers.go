package stack

import (
	"context"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/machine/vm/firecracker"
	"github.com/seed46cd37a8/atoll/machine/vm/vz"
	"github.com/seed46cd37a8/atoll/machine/vm/wsl2"
)

// A Driver creates virtual machines.
type Driver struct {
	Name    string
	Users   []string // the providers that can use it; empty if only Go programs can, with package vm
	Setting string   // the setting that selects it; "" if it is the default
	Probe   func(ctx context.Context, b *Builder) atoll.Probe
}

// Drivers returns all drivers, whatever the operating system.
func Drivers() []Driver {
	return []Driver{
		{Name: "qemu", Users: availableOn("linux", "microvm", "vmdocker"), Probe: probeQEMU},
		{Name: "firecracker", Users: availableOn("linux", "microvm"), Setting: "microvm.driver: firecracker", Probe: func(ctx context.Context, b *Builder) atoll.Probe {
			return firecracker.New(driverOptions(b.Firecracker)).Probe(ctx)
		}},
		{Name: "vz", Users: availableOn("darwin", "microvm", "vmdocker"), Probe: func(ctx context.Context, b *Builder) atoll.Probe {
			return vz.New(vz.Options{Program: b.MicroVM.VFKit}).Probe(ctx)
		}},
		{Name: "wsl2", Users: availableOn("windows", "vmdocker"), Probe: func(ctx context.Context, _ *Builder) atoll.Probe { return wsl2.New(wsl2.Options{}).Probe(ctx) }},
	}
}

// availableOn returns those of the named providers that are available on the operating system of a driver.
func availableOn(goos string, names ...string) (list []string) {
	for _, e := range config.Providers() {
		if slices.Contains(names, e.Name) && e.On(goos).OK {
			list = append(list, e.Name)
		}
	}
	return list
}
