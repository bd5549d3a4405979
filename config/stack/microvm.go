package stack

import (
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/machine/vm/firecracker"
)

// driverOptions returns the options of the driver.
func driverOptions(f config.Firecracker) firecracker.Options {
	opts := firecracker.Options{Program: f.Program}
	if f.Jail {
		opts.Jail = &firecracker.Jail{Jailer: f.Jailer, UID: f.UID, GID: f.GID, Cgroups: f.Cgroups, CgroupVersion: f.CgroupVersion}
	}
	return opts
}
