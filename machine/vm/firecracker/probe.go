package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"runtime"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// Probe implements vm.Driver. It runs the program, and creates a virtual machine on KVM.
func (d *Driver) Probe(ctx context.Context) atoll.Probe {
	if runtime.GOOS != "linux" {
		return atoll.Probe{Reason: unsupportedReason(), Fix: "on macOS use vz, on Windows wsl2"}
	}
	program, err := d.findFirecracker()
	if err != nil {
		return atoll.Probe{Reason: "firecracker is not installed", Fix: fixInstall}
	}
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return atoll.Probe{Reason: fmt.Sprintf("%s --version: %v: %s", program, err, out), Fix: fixInstall}
	}
	if err := tryKVM(d.kvm); err != nil {
		p := atoll.Probe{Reason: "KVM does not work: " + err.Error(), Fix: "use a machine with hardware virtualization, or a VM that allows nested machines"}
		if errors.Is(err, fs.ErrPermission) {
			p.Fix = "sudo usermod -aG kvm $USER, and log in again"
		}
		return p
	}
	version, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return atoll.Probe{OK: true, Notes: []string{version}}
}
