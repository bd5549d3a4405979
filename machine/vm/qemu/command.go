//go:build linux

package qemu

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/seed46cd37a8/atoll/internal/mux"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// An arch describes the machines of one architecture.
type arch struct {
	program string
	machine string // -M
	console string // the kernel's name for the serial port
	bus     string // the end of the names of virtio devices
	cpu     string // -cpu of an emulated machine
	cmdline []string
}

// arches holds the architectures with machines, by GOARCH: each runs on itself.
var arches = map[string]arch{
	"amd64": {
		program: "qemu-system-x86_64", machine: "microvm,rtc=on", console: "ttyS0", bus: "device",
		cmdline: []string{"reboot=t"},
		cpu:     "max,erms=off,fsrm=off", // with these, kernel and programs copy memory by a loop over single bytes, when emulated
	},
	"arm64": {program: "qemu-system-aarch64", machine: "virt,gic-version=max,its=off", console: "ttyAMA0", bus: "pci", cpu: "max"},
}

// The descriptors that QEMU inherits.
const (
	monitorFD = 3 + iota
	lineFD
	networkFD
)

// buildArgs returns QEMU's command line.
func (m *machine) buildArgs() ([]string, error) {
	h, a := m.hardware, m.driver.arch
	memory := h.Memory >> 20
	args := []string{
		"-name", "atoll-" + h.ID + ",debug-threads=on",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-m", strconv.FormatInt(int64(memory), 10), "-smp", strconv.Itoa(h.CPUs),
		"-kernel", h.Kernel,
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-chardev", fmt.Sprintf("socket,id=monitor,fd=%d", monitorFD), "-mon", "chardev=monitor,mode=control",
		"-chardev", fmt.Sprintf("socket,id=line,fd=%d", lineFD),
	}
	board := a.machine
	if len(h.Shares) > 0 { // their daemon reads and writes the guest's memory
		args = append(args, "-object", fmt.Sprintf("memory-backend-memfd,id=memory,size=%dM,share=on", memory))
		board += ",memory-backend=memory"
	}
	args = append(args, "-M", board)
	if m.driver.accel == accelKVM {
		args = append(args, "-accel", "kvm", "-cpu", "host")
	} else {
		args = append(args, "-accel", "tcg,thread=multi", "-cpu", a.cpu)
	}
	if a.bus == "device" { // the guest's drivers are for modern virtio
		args = append(args, "-global", "virtio-mmio.force-legacy=false")
	}
	if h.Initrd != "" {
		args = append(args, "-initrd", h.Initrd)
	}
	words := slices.Concat([]string{"console=" + a.console, "panic=-1"}, a.cmdline)
	if m.driver.accel == accelTCG {
		words = append(words, clockParams()...)
	}
	args = append(args, "-append", strings.Join(append(words, h.Cmdline...), " "))

	devices := []map[string]any{
		{"driver": "virtio-serial-" + a.bus, "id": "ports"},
		{"driver": "virtserialport", "bus": "ports.0", "chardev": "line", "name": mux.Name},
		{"driver": "virtio-rng-" + a.bus},
		{"driver": "virtio-balloon-" + a.bus, "free-page-reporting": true}, // memory that the guest frees returns to the host
	}
	for i, d := range h.Disks {
		node := "disk" + strconv.Itoa(i)
		backend := map[string]any{
			"driver": formatOf(d), "node-name": node, "read-only": d.ReadOnly, "discard": "unmap",
			"file": map[string]any{"driver": "file", "filename": d.Path, "discard": "unmap"},
		}
		if d.ReadOnly { // many machines share the disk, and none writes to it
			backend["file"].(map[string]any)["locking"] = "off"
		}
		text, err := json.Marshal(backend)
		if err != nil {
			return nil, err
		}
		args = append(args, "-blockdev", string(text))
		devices = append(devices, map[string]any{"driver": "virtio-blk-" + a.bus, "drive": node, "serial": d.ID})
	}
	if h.Network != nil {
		args = append(args, "-netdev", fmt.Sprintf("dgram,id=network,local.type=fd,local.str=%d", networkFD))
		card := map[string]any{"driver": "virtio-net-" + a.bus, "netdev": "network", "mac": h.MAC.String()}
		if h.MTU != 0 {
			card["host_mtu"] = h.MTU
		}
		devices = append(devices, card)
	}
	if h.CID != 0 {
		devices = append(devices, map[string]any{"driver": "vhost-vsock-" + a.bus, "guest-cid": h.CID})
	}
	for i, s := range h.Shares {
		id := "share" + strconv.Itoa(i)
		args = append(args, "-chardev", fmt.Sprintf("socket,id=%s,path=%s", id, escapeCommas(m.shareSocket(i))))
		devices = append(devices, map[string]any{"driver": "vhost-user-fs-" + a.bus, "chardev": id, "tag": s.Tag})
	}
	for _, d := range devices {
		text, err := json.Marshal(d)
		if err != nil {
			return nil, err
		}
		args = append(args, "-device", string(text))
	}
	return args, nil
}

func formatOf(d vm.Disk) string {
	if d.Format == "" {
		return string(vm.FormatRaw)
	}
	return string(d.Format)
}

// escapeCommas returns a path for use in an option whose parts are separated by commas.
func escapeCommas(path string) string { return strings.ReplaceAll(path, ",", ",,") }
