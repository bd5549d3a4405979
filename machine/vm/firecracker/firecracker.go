// Package firecracker runs machines with Firecracker, which needs Linux and KVM. Each machine is a
// process that ends with the process that started it, also if that is killed. As root it can be
// jailed with Firecracker's own jailer.
//
//	driver := firecracker.New(firecracker.Options{})
//	m, err := driver.New(&vm.Hardware{ID: "m1", Dir: dir, CPUs: 2, Memory: 256 << 20, Kernel: "/boot/vmlinux", CID: 3, ...})
package firecracker

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// Options configure where Firecracker is and how it is confined.
type Options struct {
	// Program is the path of firecracker; empty means the one in PATH.
	Program string
	// Jail confines Firecracker further than it confines itself; nil does not.
	Jail *Jail
}

// A Jail configures jailer, which needs root: the hypervisor runs as another user, sees only its
// own files, and has a PID namespace of its own.
type Jail struct {
	// Jailer is the path of jailer; empty means the one in PATH.
	Jailer string
	// UID and GID are the user and group of the hypervisor. Not 0, and best not shared with another
	// machine. They must be able to read the kernel, and to read and write the disks, which must be
	// on the file system of Hardware.Dir unless they are read-only.
	UID, GID int
	// Cgroups are values for files of a cgroup of the machine's own, such as
	// "memory.max=536870912".
	Cgroups []string
	// CgroupVersion is 1 or 2; 0 means 2.
	CgroupVersion int
}

// A Driver creates machines with Firecracker.
type Driver struct {
	opts Options
	kvm  string // the device
}

// New returns a driver. It does not look for programs yet.
func New(opts Options) *Driver { return &Driver{opts: opts, kvm: "/dev/kvm"} }

// Name implements vm.Driver.
func (d *Driver) Name() string { return "firecracker" }

// Caps implements vm.Driver. Machines have no network: that would need a tap device, which only
// root can create.
func (d *Driver) Caps() vm.Caps {
	return vm.Caps{Snapshot: true, Pause: true, ELF: true, Vsock: true, Formats: []vm.Format{vm.FormatRaw}}
}

// maxID is Firecracker's limit for the id of a machine, in bytes.
const maxID = 64

// New implements vm.Driver.
func (d *Driver) New(h *vm.Hardware) (vm.Machine, error) {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("machine", h.ID, atoll.ErrInvalid, format, args...)
	}
	if runtime.GOOS != "linux" {
		return nil, atoll.Errorf("machine", h.ID, atoll.ErrUnsupported, "%s", unsupportedReason())
	}
	if err := h.Validate(d.Caps()); err != nil {
		return nil, err
	}
	switch j := d.opts.Jail; {
	case len(h.ID) > maxID || strings.Trim(h.ID, idLetters) != "":
		return nil, bad("id %q: use 1..%d letters, digits and '-'", h.ID, maxID)
	case !filepath.IsAbs(h.Dir):
		return nil, bad("directory %q: must be absolute", h.Dir)
	case h.Kernel == "" && h.Snapshot == "":
		return nil, bad("no kernel given: firecracker boots an uncompressed one (vmlinux)")
	case j != nil && (j.UID <= 0 || j.GID <= 0):
		return nil, bad("jail: uid %d, gid %d: must be those of an unprivileged user", j.UID, j.GID)
	case j != nil && j.CgroupVersion != 0 && j.CgroupVersion != 1 && j.CgroupVersion != 2:
		return nil, bad("jail: cgroup version %d: must be 1 or 2", j.CgroupVersion)
	}
	m := &machine{driver: d, hardware: *h, root: filepath.Join(h.Dir, baseDir)}
	m.hardware.Cmdline, m.hardware.Disks = slices.Clone(h.Cmdline), slices.Clone(h.Disks)
	if h.Snapshot != "" {
		if err := m.checkSnapshot(); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// unsupportedReason returns the reason why Firecracker does not run on this system.
func unsupportedReason() string {
	return "firecracker is only available on Linux, current platform: " + runtime.GOOS
}

const idLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"

// Find returns opts with the absolute paths of the programs, for use without PATH. Kinds:
// ErrUnavailable.
func Find(opts Options) (Options, error) {
	d := New(opts)
	var err error
	if opts.Program, err = d.findFirecracker(); err != nil || opts.Jail == nil {
		return opts, err
	}
	jail := *opts.Jail
	jail.Jailer, err = d.findJailer()
	opts.Jail = &jail
	return opts, err
}

// findFirecracker and findJailer return the absolute paths of the programs.
func (d *Driver) findFirecracker() (string, error) { return findProgram(d.opts.Program, "firecracker") }
func (d *Driver) findJailer() (string, error)      { return findProgram(d.opts.Jail.Jailer, "jailer") }

func findProgram(path, name string) (string, error) {
	if path == "" {
		path = name
	}
	found, err := exec.LookPath(path)
	if err != nil {
		return "", atoll.Errorf("", "", atoll.ErrUnavailable, "%w: %s", err, fixInstall)
	}
	return filepath.Abs(found)
}

const fixInstall = "install firecracker and jailer from https://github.com/firecracker-microvm/firecracker/releases"

var _ vm.Driver = (*Driver)(nil)
