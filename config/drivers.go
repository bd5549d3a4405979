package config

import (
	"context"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm/firecracker"
	"github.com/seed46cd37a8/atoll/machine/vm/vz"
	"github.com/seed46cd37a8/atoll/machine/vm/wsl2"
)

// A Driver is what virtual machines can be made with.
type Driver struct {
	Name    string
	Users   []string // the providers that make theirs with it; none means that only Go programs can, by package vm
	Setting string   // with which they do; "" is by default
	Probe   func(ctx context.Context, cfg *Config) atoll.Probe
}

// Drivers lists those there are, on whatever system.
func Drivers() []Driver {
	return []Driver{
		{Name: "qemu", Users: on("linux", "microvm", "vmdocker"), Probe: probeQEMU},
		{Name: "firecracker", Users: on("linux", "microvm"), Setting: "microvm.driver: firecracker", Probe: func(ctx context.Context, cfg *Config) atoll.Probe {
			return firecracker.New(cfg.Firecracker.options()).Probe(ctx)
		}},
		{Name: "vz", Users: on("darwin", "microvm", "vmdocker"), Probe: func(ctx context.Context, cfg *Config) atoll.Probe {
			return vz.New(vz.Options{Program: cfg.MicroVM.VFKit}).Probe(ctx)
		}},
		{Name: "wsl2", Users: on("windows", "vmdocker"), Probe: func(ctx context.Context, _ *Config) atoll.Probe { return wsl2.New(wsl2.Options{}).Probe(ctx) }},
	}
}

// on are those of some providers that there are on a system, which is that of a driver.
func on(goos string, names ...string) (list []string) {
	for _, e := range Providers() {
		if slices.Contains(names, e.Name) && e.On(goos).OK {
			list = append(list, e.Name)
		}
	}
	return list
}
