package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seed46cd37a8/atoll/machine/vm/firecracker"
)

// MicroVM are the settings of the provider microvm. They can be set on every operating
// system, so that machines can share a file.
type MicroVM struct {
	Bundle string `yaml:"bundle" doc:"what sandboxes boot that name no image: see atoll image build; the one called debian is built when it is not there"`
	Driver string `yaml:"driver" form:"auto qemu firecracker vz" doc:"what makes the machines, see atoll doctor: auto is qemu on Linux, vz on macOS; with firecracker sandboxes have neither a network nor volumes"`
	QEMU   string `yaml:"qemu" doc:"QEMU's program; that of this machine's architecture when empty"`
	Accel  string `yaml:"accel" form:"auto kvm tcg" doc:"what machines of QEMU run on: auto is kvm where that works, else tcg, which is emulation"`
	VFKit  string `yaml:"vfkit" doc:"vfkit's program, by which vz makes machines; the one in PATH when empty"`
	Debug  bool   `yaml:"debug" doc:"have kernels say on their consoles all that they do"`
}

func defaultMicroVM() MicroVM { return MicroVM{Bundle: "debian", Driver: auto, Accel: auto} }

// auto is what the provider finds out itself.
const auto = "auto"

// Firecracker are the settings of what makes the machines of microvm where that is
// firecracker.
type Firecracker struct {
	Program       string   `yaml:"program" doc:"Firecracker's program; the one in PATH when empty"`
	Jail          bool     `yaml:"jail" doc:"confine each machine with jailer, which needs root"`
	Jailer        string   `yaml:"jailer" doc:"jailer's program; the one in PATH when empty"`
	UID           int      `yaml:"uid" doc:"whom jailed machines run as; nobody else's"`
	GID           int      `yaml:"gid" doc:"and with what group"`
	Cgroups       []string `yaml:"cgroups" doc:"what jailer writes into a cgroup of the machine's own, like memory.max=536870912"`
	CgroupVersion int      `yaml:"cgroup_version" doc:"of those: 1 or 2"`
}

func defaultFirecracker() Firecracker { return Firecracker{CgroupVersion: 2} }

// check calls bad with the key of each value that makes no sense.
func (f Firecracker) check(bad func(key string, err error)) {
	if f.Jail && f.UID <= 0 {
		bad("firecracker.uid", fmt.Errorf("%d: a jail needs a user that is not root", f.UID))
	}
	if f.Jail && f.GID <= 0 {
		bad("firecracker.gid", fmt.Errorf("%d: a jail needs a group that is not root's", f.GID))
	}
	if f.CgroupVersion != 1 && f.CgroupVersion != 2 {
		bad("firecracker.cgroup_version", fmt.Errorf("%d: use 1 or 2", f.CgroupVersion))
	}
	for _, c := range f.Cgroups {
		if name, value, ok := strings.Cut(c, "="); !ok || name == "" || value == "" {
			bad("firecracker.cgroups", errors.New(c+": write it like memory.max=536870912"))
		}
	}
}

// options are those of the driver.
func (f Firecracker) options() firecracker.Options {
	opts := firecracker.Options{Program: f.Program}
	if f.Jail {
		opts.Jail = &firecracker.Jail{Jailer: f.Jailer, UID: f.UID, GID: f.GID, Cgroups: f.Cgroups, CgroupVersion: f.CgroupVersion}
	}
	return opts
}
