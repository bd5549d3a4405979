package config

import (
	"errors"
	"fmt"
	"strings"
)

// MicroVM has the settings of the provider microvm. They are valid on every operating system, so that machines can
// share a file.
type MicroVM struct {
	Bundle string `yaml:"bundle" doc:"bundle that sandboxes without an image boot, see atoll image build; a missing bundle debian is built"`
	Driver string `yaml:"driver" form:"auto qemu firecracker vz" doc:"driver of the machines, see atoll doctor: auto means qemu on Linux and vz on macOS; with firecracker, sandboxes have neither a network nor volumes"`
	QEMU   string `yaml:"qemu" doc:"path of QEMU; empty means the program for the architecture of this machine"`
	Accel  string `yaml:"accel" form:"auto kvm tcg" doc:"accelerator of QEMU: auto means kvm if it works, otherwise tcg, which is emulation"`
	VFKit  string `yaml:"vfkit" doc:"path of vfkit, which the driver vz uses; empty means the one in PATH"`
	Debug  bool   `yaml:"debug" doc:"make kernels log everything to their consoles"`
}

func defaultMicroVM() MicroVM { return MicroVM{Bundle: "debian", Driver: Auto, Accel: Auto} }

// Auto leaves a setting to the provider.
const Auto = "auto"

// Firecracker has the settings of the driver firecracker.
type Firecracker struct {
	Program       string   `yaml:"program" doc:"path of Firecracker; empty means the one in PATH"`
	Jail          bool     `yaml:"jail" doc:"confine each machine with jailer, which requires root"`
	Jailer        string   `yaml:"jailer" doc:"path of jailer; empty means the one in PATH"`
	UID           int      `yaml:"uid" doc:"user of jailed machines; nothing else should run as this user"`
	GID           int      `yaml:"gid" doc:"group of jailed machines"`
	Cgroups       []string `yaml:"cgroups" doc:"values that jailer writes to the cgroup of a machine, like memory.max=536870912"`
	CgroupVersion int      `yaml:"cgroup_version" doc:"version of the cgroups: 1 or 2"`
}

func defaultFirecracker() Firecracker { return Firecracker{CgroupVersion: 2} }

// checkValues calls bad with the key of each invalid value.
func (f Firecracker) checkValues(bad func(key string, err error)) {
	if f.Jail && f.UID <= 0 {
		bad("firecracker.uid", fmt.Errorf("%d: jail requires a user other than root", f.UID))
	}
	if f.Jail && f.GID <= 0 {
		bad("firecracker.gid", fmt.Errorf("%d: jail requires a group other than root's", f.GID))
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
