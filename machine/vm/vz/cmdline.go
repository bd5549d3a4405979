package vz

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/seed46cd37a8/atoll/machine/vm"
)

// What is in a machine's directory, by name. Those of ports have their number after it.
const (
	baseDir     = "vz" // in Hardware.Dir
	restSock    = "rest"
	consoleFile = "console"
	portSock    = "p"
)

// networkFD is what vfkit inherits.
const networkFD = 3

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) port(n uint32) string {
	return m.path(portSock + strconv.FormatUint(uint64(n), 10))
}

// ports are those that vfkit has to know.
func (m *machine) ports() []uint32 {
	if slices.Contains(m.h.Ports, vm.PortPowerOff) {
		return m.h.Ports
	}
	return append(slices.Clip(m.h.Ports), vm.PortPowerOff)
}

// cmdline is what the kernel is told.
func (m *machine) cmdline() []string { return append([]string{"console=hvc0"}, m.h.Cmdline...) }

// args are vfkit's. It splits what follows --bootloader and --device at commas, and takes
// quotes away from the kernel's command line only.
func (m *machine) args() []string {
	boot := "linux,kernel=" + m.h.Kernel
	if m.h.Initrd != "" {
		boot += ",initrd=" + m.h.Initrd
	}
	boot += `,cmdline="` + strings.Join(m.cmdline(), " ") + `"`
	args := []string{
		"--log-level", "error",
		"--cpus", strconv.Itoa(m.h.CPUs),
		"--memory", strconv.FormatInt(int64(m.h.Memory>>20), 10),
		"--restful-uri", "unix://" + m.path(restSock),
		"--bootloader", boot,
		"--device", "virtio-rng",
		"--device", "virtio-serial,logFilePath=" + m.path(consoleFile),
	}
	for _, d := range m.h.Disks {
		// That there is readonly is not in vfkit's documentation, but in what reads it.
		dev := "virtio-blk,path=" + d.Path + ",deviceId=" + d.ID
		if d.ReadOnly {
			dev += ",readonly"
		}
		args = append(args, "--device", dev)
	}
	for _, s := range m.h.Shares {
		args = append(args, "--device", "virtio-fs,sharedDir="+s.Dir+",mountTag="+s.Tag)
	}
	for _, p := range m.ports() {
		args = append(args, "--device", fmt.Sprintf("virtio-vsock,port=%d,socketURL=%s,connect", p, m.port(p)))
	}
	if m.h.Network != nil {
		args = append(args, "--device", fmt.Sprintf("virtio-net,fd=%d,mac=%s", networkFD, m.h.MAC))
	}
	return args
}
