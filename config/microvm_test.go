package config

import (
	"strings"
	"testing"
)

func TestInvalidMachines(t *testing.T) {
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
