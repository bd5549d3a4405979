package vmengine

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/firecracker"
	"github.com/seed46cd37a8/atoll/machine/vm/vz"
	"github.com/seed46cd37a8/atoll/machine/vm/wsl2"
)

// The drivers that machines can be made with.
const (
	QEMU        = "qemu"
	Firecracker = "firecracker"
	VZ          = "vz"
	WSL2        = "wsl2"
)

// A Driver says what makes a machine, and with what options.
type Driver struct {
	Name    string            `json:"name"`
	Program string            `json:"program,omitempty"` // the hypervisor's; "" is the one in PATH
	Accel   string            `json:"accel,omitempty"`   // of QEMU
	Cache   string            `json:"cache,omitempty"`   // what QEMU has found out about accelerators
	Jail    *firecracker.Jail `json:"jail,omitempty"`    // of Firecracker
}

// DefaultDriver is the name of this system's.
func DefaultDriver() string {
	switch runtime.GOOS {
	case "darwin":
		return VZ
	case "windows":
		return WSL2
	}
	return QEMU
}

// Check reports whether there is such a driver. Kinds: ErrInvalid.
func (d Driver) Check() error {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("driver", d.Name, atoll.ErrInvalid, format, args...)
	}
	switch {
	case !slices.Contains([]string{QEMU, Firecracker, VZ, WSL2}, d.Name):
		return bad("there is no such driver: use %s, %s, %s or %s", QEMU, Firecracker, VZ, WSL2)
	case d.Accel != "" && d.Name != QEMU:
		return bad("accelerator %q: only %s has a choice", d.Accel, QEMU)
	case d.Jail != nil && d.Name != Firecracker:
		return bad("a jail is for machines of %s", Firecracker)
	}
	return nil
}

// Caps are those of its machines here, as far as no machine has to be tried for that:
// Emulated is.
func (d Driver) Caps() vm.Caps {
	switch d.Name {
	case Firecracker:
		return d.firecracker().Caps()
	case VZ:
		return d.vz().Caps()
	case WSL2:
		return d.wsl2().Caps()
	}
	return qemuCaps()
}

// Probe finds out whether its machines work here, with a kernel that QEMU can try that
// with, if there is one.
func (d Driver) Probe(ctx context.Context, kernel string, log *slog.Logger) atoll.Probe {
	switch d.Name {
	case Firecracker:
		p := d.firecracker().Probe(ctx)
		if p.OK && d.Jail != nil && os.Geteuid() != 0 {
			p = atoll.Probe{Reason: "jailer needs root", Fix: "run as root, or without a jail"}
		}
		return p
	case VZ:
		return d.vz().Probe(ctx)
	case WSL2:
		return d.wsl2().Probe(ctx)
	}
	return d.probeQEMU(ctx, kernel, log)
}

// Open makes the driver, with a kernel that QEMU can try KVM with.
func (d Driver) Open(ctx context.Context, kernel string, log *slog.Logger) (vm.Driver, error) {
	switch d.Name {
	case Firecracker:
		return d.firecracker(), nil
	case VZ:
		return d.vz(), nil
	case WSL2:
		return d.wsl2(), nil
	}
	return d.openQEMU(ctx, kernel, log)
}

// Found is d with the paths of programs that are looked for in PATH, which keepers do
// not have. Kinds: ErrUnavailable.
func (d Driver) Found() (_ Driver, err error) {
	switch d.Name {
	case Firecracker:
		opts, err := firecracker.Find(firecracker.Options{Program: d.Program, Jail: d.Jail})
		d.Program, d.Jail = opts.Program, opts.Jail
		return d, err
	case VZ:
		d.Program, err = vz.Find(d.Program)
	case WSL2:
		d.Program, err = wsl2.Find(d.Program)
	default:
		d.Program, err = findQEMU(d.Program)
	}
	return d, err
}

func (d Driver) firecracker() *firecracker.Driver {
	return firecracker.New(firecracker.Options{Program: d.Program, Jail: d.Jail})
}

func (d Driver) vz() *vz.Driver { return vz.New(vz.Options{Program: d.Program}) }

func (d Driver) wsl2() *wsl2.Driver {
	return wsl2.New(wsl2.Options{Program: d.Program, Guest: []string{bundle.GuestPath, "distro"}})
}

// Forget removes what a machine keeps at path, with what else the driver knows of it. It
// has ended. Kinds: ErrConflict, ErrUnavailable.
func (d Driver) Forget(ctx context.Context, path string) error {
	if d.Name == WSL2 {
		if err := d.wsl2().Forget(ctx, path); err != nil {
			return err
		}
	}
	return fsutil.RemoveAll(path)
}
