package config

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/vm/firecracker"
	"github.com/seed46cd37a8/atoll/vm/vz"
	"github.com/seed46cd37a8/atoll/vm/wsl2"
)

// A Driver is what virtual machines can be made with.
type Driver struct {
	Name  string
	Users []string // the providers that make theirs with it; none means that only Go programs can, by package vm
	Probe func(ctx context.Context, cfg *Config) atoll.Probe
}

// Drivers lists those there are, on whatever system.
func Drivers() []Driver {
	return []Driver{
		{Name: "qemu", Users: []string{"microvm", "vmdocker"}, Probe: probeQEMU},
		{Name: "firecracker", Probe: func(ctx context.Context, _ *Config) atoll.Probe {
			return firecracker.New(firecracker.Options{}).Probe(ctx)
		}},
		{Name: "vz", Probe: func(ctx context.Context, _ *Config) atoll.Probe { return vz.New(vz.Options{}).Probe(ctx) }},
		{Name: "wsl2", Probe: func(ctx context.Context, _ *Config) atoll.Probe { return wsl2.New(wsl2.Options{}).Probe(ctx) }},
	}
}
