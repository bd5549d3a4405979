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

// The names of the drivers.
const (
	QEMU        = "qemu"
	Firecracker = "firecracker"
	VZ          = "vz"
	WSL2        = "wsl2"
)

// A Driver configures the driver of a machine.
type Driver struct {
	Name    string            `json:"name"`
	Program string            `json:"program,omitempty"` // of the hypervisor; "" means the one in PATH
	Accel   string            `json:"accel,omitempty"`   // of QEMU
	Cache   string            `json:"cache,omitempty"`   // for QEMU's trials of accelerators
	Jail    *firecracker.Jail `json:"jail,omitempty"`    // of Firecracker
}

// DefaultDriver returns the name of this system's driver.
func DefaultDriver() string {
	switch runtime.GOOS {
	case "darwin":
		return VZ
	case "windows":
		return WSL2
	}
	return QEMU
}

// Check returns an error unless the driver exists and has the options. Kinds: ErrInvalid.
func (d Driver) Check() error {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("driver", d.Name, atoll.ErrInvalid, format, args...)
	}
	switch {
	case !slices.Contains([]string{QEMU, Firecracker, VZ, WSL2}, d.Name):
		return bad("no such driver: use %s, %s, %s or %s", QEMU, Firecracker, VZ, WSL2)
	case d.Accel != "" && d.Name != QEMU:
		return bad("accelerator %q: only %s takes one", d.Accel, QEMU)
	case d.Jail != nil && d.Name != Firecracker:
		return bad("jail: only %s takes one", Firecracker)
	}
	return nil
}

// Caps returns the capabilities of its machines here, as far as they are known without trying a
// machine: all but Emulated.
func (d Driver) Caps() vm.Caps {
	switch d.Name {
	case Firecracker:
		return d.firecrackerDriver().Caps()
	case VZ:
		return d.vzDriver().Caps()
	case WSL2:
		return d.wsl2Driver().Caps()
	}
	return qemuCaps()
}

// Probe finds out whether its machines work here. QEMU tries the kernel, if there is one.
func (d Driver) Probe(ctx context.Context, kernel string, log *slog.Logger) atoll.Probe {
	switch d.Name {
	case Firecracker:
		p := d.firecrackerDriver().Probe(ctx)
		if p.OK && d.Jail != nil && os.Geteuid() != 0 {
			p = atoll.Probe{Reason: "jailer needs root", Fix: "run as root, or without a jail"}
		}
		return p
	case VZ:
		return d.vzDriver().Probe(ctx)
	case WSL2:
		return d.wsl2Driver().Probe(ctx)
	}
	return d.probeQEMU(ctx, kernel, log)
}

// Open returns the driver. QEMU tries KVM with the kernel.
func (d Driver) Open(ctx context.Context, kernel string, log *slog.Logger) (vm.Driver, error) {
	switch d.Name {
	case Firecracker:
		return d.firecrackerDriver(), nil
	case VZ:
		return d.vzDriver(), nil
	case WSL2:
		return d.wsl2Driver(), nil
	}
	return d.openQEMU(ctx, kernel, log)
}

// Found returns d with the absolute paths of programs, since supervisors have no PATH. Kinds:
// ErrUnavailable.
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

func (d Driver) firecrackerDriver() *firecracker.Driver {
	return firecracker.New(firecracker.Options{Program: d.Program, Jail: d.Jail})
}

func (d Driver) vzDriver() *vz.Driver { return vz.New(vz.Options{Program: d.Program}) }

func (d Driver) wsl2Driver() *wsl2.Driver {
	return wsl2.New(wsl2.Options{Program: d.Program, Guest: []string{bundle.GuestPath, "distro"}})
}

// Forget removes the data of a machine at path, and the driver's record of it. The machine must
// have ended. Kinds: ErrConflict, ErrUnavailable.
func (d Driver) Forget(ctx context.Context, path string) error {
	if d.Name == WSL2 {
		if err := d.wsl2Driver().Forget(ctx, path); err != nil {
			return err
		}
	}
	return fsutil.RemoveAll(path)
}
