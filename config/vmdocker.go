package config

import "github.com/seed46cd37a8/atoll"

// VMDocker are the settings of the provider vmdocker, whose machines are made as those of
// microvm are. They can be set on every operating system, so that machines can share a file.
type VMDocker struct {
	Image         string      `yaml:"image" doc:"image of sandboxes that name none"`
	Driver        string      `yaml:"driver" form:"auto qemu vz wsl2" doc:"what makes the machines, see atoll doctor: auto is qemu on Linux, vz on macOS, wsl2 on Windows; those of firecracker have no network"`
	CPUCount      int         `yaml:"cpu_count" doc:"CPUs of a project's machine; not with wsl2, whose machines share all"`
	MemoryMB      int         `yaml:"memory_mb" doc:"memory of a project's machine, in MiB; not with wsl2"`
	Disk          atoll.Bytes `yaml:"disk" doc:"size of a project's disk, of which what is not used takes no space; it may become larger; not with wsl2"`
	IdleTimeout   string      `yaml:"idle_timeout" doc:"how long a machine stays in which no sandbox runs, like 30m; 0 for ever"`
	DataDir       string      `yaml:"data_dir" form:"path" doc:"directory of projects' disks; in the state directory when empty"`
	ConsoleLogDir string      `yaml:"console_log_dir" form:"path" doc:"directory of what machines print; in the state directory when empty"`
}

func defaultVMDocker() VMDocker {
	return VMDocker{Image: "ubuntu:22.04", Driver: auto, CPUCount: 2, MemoryMB: 2048, Disk: 20 << 30, IdleTimeout: "30m"}
}
