package vz

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/seed46cd37a8/atoll/machine/vm"
)

// The names of files in a machine's directory. Those of ports end with the number.
const (
	baseDir     = "vz" // in Hardware.Dir
	restSock    = "rest"
	consoleFile = "console"
	portSock    = "p"
)

// networkFD is the descriptor of the network that vfkit inherits.
const networkFD = 3

func (m *machine) filePath(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) portSocket(n uint32) string {
	return m.filePath(portSock + strconv.FormatUint(uint64(n), 10))
}

// listenPorts returns the ports that vfkit has to know.
func (m *machine) listenPorts() []uint32 {
	if slices.Contains(m.hardware.Ports, vm.PortPowerOff) {
		return m.hardware.Ports
	}
	return append(slices.Clip(m.hardware.Ports), vm.PortPowerOff)
}

// kernelCmdline returns the words of the kernel's command line.
func (m *machine) kernelCmdline() []string {
	return append([]string{"console=hvc0"}, m.hardware.Cmdline...)
}

// buildArgs returns vfkit's arguments. vfkit splits the values of --bootloader and --device at
// commas, and removes quotes only from the kernel's command line.
func (m *machine) buildArgs() []string {
	boot := "linux,kernel=" + m.hardware.Kernel
	if m.hardware.Initrd != "" {
		boot += ",initrd=" + m.hardware.Initrd
	}
	boot += `,cmdline="` + strings.Join(m.kernelCmdline(), " ") + `"`
	args := []string{
		"--log-level", "error",
		"--cpus", strconv.Itoa(m.hardware.CPUs),
		"--memory", strconv.FormatInt(int64(m.hardware.Memory>>20), 10),
		"--restful-uri", "unix://" + m.filePath(restSock),
		"--bootloader", boot,
		"--device", "virtio-rng",
		"--device", "virtio-serial,logFilePath=" + m.filePath(consoleFile),
	}
	for _, d := range m.hardware.Disks {
		// vfkit's documentation lacks readonly, but its parser has it.
		dev := "virtio-blk,path=" + d.Path + ",deviceId=" + d.ID
		if d.ReadOnly {
			dev += ",readonly"
		}
		args = append(args, "--device", dev)
	}
	for _, s := range m.hardware.Shares {
		args = append(args, "--device", "virtio-fs,sharedDir="+s.Dir+",mountTag="+s.Tag)
	}
	for _, p := range m.listenPorts() {
		args = append(args, "--device", fmt.Sprintf("virtio-vsock,port=%d,socketURL=%s,connect", p, m.portSocket(p)))
	}
	if m.hardware.Network != nil {
		args = append(args, "--device", fmt.Sprintf("virtio-net,fd=%d,mac=%s", networkFD, m.hardware.MAC))
	}
	return args
}
