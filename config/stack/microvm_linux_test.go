package stack

import (
	"reflect"
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
		b, err := loadBuilder(t, file, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if got := machineOptions(b, b.MicroVM.Driver, Options{}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", file, got, want)
		}
	}
}
