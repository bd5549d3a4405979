package config

import (
	"github.com/seed46cd37a8/atoll"
)

// VMDocker has the settings of the provider vmdocker, whose machines are like those of microvm. They are valid on
// every operating system, so that machines can share a file.
type VMDocker struct {
	Image         string      `yaml:"image" doc:"image of sandboxes that name none"`
	Driver        string      `yaml:"driver" form:"auto qemu vz wsl2" doc:"driver of the machines, see atoll doctor: auto means qemu on Linux, vz on macOS and wsl2 on Windows; machines of firecracker have no network"`
	CPUCount      int         `yaml:"cpu_count" doc:"CPUs of a project's machine; not with wsl2, whose machines share all CPUs"`
	MemoryMB      int         `yaml:"memory_mb" doc:"memory of a project's machine in MiB; not with wsl2"`
	Disk          atoll.Bytes `yaml:"disk" doc:"size of a project's disk, which can grow; unused space takes no room; not with wsl2"`
	IdleTimeout   string      `yaml:"idle_timeout" doc:"time after which a machine without a running sandbox stops, like 30m; 0 for never"`
	DataDir       string      `yaml:"data_dir" form:"path" doc:"directory of the disks of projects; empty means one in the state directory"`
	ConsoleLogDir string      `yaml:"console_log_dir" form:"path" doc:"directory of the console output of machines; empty means one in the state directory"`
}

func defaultVMDocker() VMDocker {
	return VMDocker{Image: "ubuntu:22.04", Driver: Auto, CPUCount: 2, MemoryMB: 2048, Disk: 20 << 30, IdleTimeout: "30m"}
}
