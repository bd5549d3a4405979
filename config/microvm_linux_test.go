package config

import (
	"reflect"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/machine/vm/firecracker"
	"github.com/seed46cd37a8/atoll/provider/microvm"
)

// Machines use the configured driver with its options.
func TestMachineOptions(t *testing.T) {
	for file, want := range map[string]microvm.Options{
		"microvm: {qemu: /q, accel: auto}":                      {Driver: "qemu", Program: "/q"},
		"microvm: {driver: qemu, accel: tcg, debug: true}":      {Driver: "qemu", Accel: "tcg", Debug: true},
		"microvm: {driver: vz, vfkit: /v, qemu: /q}":            {Driver: "vz", Program: "/v"},
		"microvm: {driver: firecracker, accel: kvm}":            {Driver: "firecracker"},
		"microvm: {driver: firecracker}\nfirecracker: {uid: 7}": {Driver: "firecracker"},
		"microvm: {driver: firecracker}\nfirecracker: {program: /f, jail: true, jailer: /j, uid: 7, gid: 8, cgroups: [a.max=1]}": {
			Driver: "firecracker", Program: "/f",
			Jail: &firecracker.Jail{Jailer: "/j", UID: 7, GID: 8, Cgroups: []string{"a.max=1"}, CgroupVersion: 2},
		},
	} {
		cfg, err := load(t, file, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if got := machineOptions(cfg, cfg.MicroVM.Driver, Options{}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", file, got, want)
		}
	}
	for file, says := range map[string]string{
		"microvm: {driver: wsl2}":                    "use one of auto, qemu, firecracker, vz",
		"vmdocker: {driver: firecracker}":            "use one of auto, qemu, vz, wsl2",
		"firecracker: {jail: true}":                  "firecracker.uid",
		"firecracker: {jail: true, uid: 7}":          "firecracker.gid",
		"firecracker: {cgroup_version: 3}":           "use 1 or 2",
		"firecracker: {cgroups: [memory.max]}":       "write it like",
		"firecracker: {jail: true, uid: -1, gid: 8}": "other than root",
	} {
		if _, err := load(t, file, nil, nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", file, err, says)
		}
	}
}
