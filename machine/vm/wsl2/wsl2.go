// Package wsl2 makes machines with the Windows Subsystem for Linux: each is a
// distribution of its own, which the program wsl.exe is asked for, and whose guest is
// reached over the stdio of that.
//
// All distributions of a user are in one virtual machine, and have its kernel, network,
// CPUs and memory in common: Windows is protected by a hypervisor, and machines from each
// other by what separates containers. They have neither the drives of Windows nor its
// programs, which other distributions have.
//
// With Hardware.Home a distribution is that directory's, which its disk is in: it stays
// when its machine ends, with all that was written to it, until it is forgotten.
package wsl2

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// Options say where WSL is, and what runs in its distributions.
type Options struct {
	// Program is the path of wsl.exe; empty means the one in PATH, on Windows.
	Program string
	// Guest is the program that is executed in each machine as root, by its path in
	// Hardware.Root, and its arguments. It serves its ports on stdin and stdout, by
	// package mux's Guest, and ends when stdin does, or vm.PortPowerOff is dialled. With
	// Hardware.Home and the one argument "unpack" it writes the archive on its stdin over
	// the root file system, so that it can be run again if that is cut short.
	Guest []string
}

// A Driver makes machines with WSL.
type Driver struct{ opts Options }

// New returns a driver. It looks for nothing yet.
func New(opts Options) *Driver { return &Driver{opts} }

// Name implements vm.Driver.
func (d *Driver) Name() string { return "wsl2" }

// Caps implements vm.Driver.
func (d *Driver) Caps() vm.Caps {
	return vm.Caps{Online: true, Frames: true, MTU: maxMTU, Root: true, Sizeless: true}
}

// maxMTU leaves room for the head of a frame, which is as long as two bytes can say.
const maxMTU = 65520

// prefix begins the names of distributions that are ours.
const prefix = "atoll-"

// maxID is how long the id of a machine may be, for the name of a directory.
const maxID = 64

// New implements vm.Driver.
func (d *Driver) New(h *vm.Hardware) (vm.Machine, error) {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("machine", h.ID, atoll.ErrInvalid, format, args...)
	}
	cannot := func(what string) error {
		return atoll.Errorf("machine", h.ID, atoll.ErrUnsupported, "wsl2 has no %s", what)
	}
	if !d.here() {
		return nil, atoll.Errorf("machine", h.ID, atoll.ErrUnsupported, "%s", elsewhere())
	}
	if err := h.Validate(d.Caps()); err != nil {
		return nil, err
	}
	switch {
	case len(h.ID) > maxID || strings.Trim(h.ID, letters) != "":
		return nil, bad("id %q: use 1..%d letters, digits and '-'", h.ID, maxID)
	case !filepath.IsAbs(h.Dir):
		return nil, bad("directory %q: must be absolute", h.Dir)
	case h.Home != "" && !filepath.IsAbs(h.Home):
		return nil, bad("home %q: must be absolute", h.Home)
	case h.CID != 0:
		return nil, cannot("vsock that can be chosen: leave the CID at 0, ports are reached without")
	case len(d.opts.Guest) == 0 || !strings.HasPrefix(d.opts.Guest[0], "/"):
		return nil, bad("the guest %q must be a path in the root archive, and arguments", d.opts.Guest)
	}
	return &machine{d: d, h: *h, root: distroOf(h)}, nil
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"

// here reports whether there can be WSL on this system.
func (d *Driver) here() bool { return runtime.GOOS == "windows" || d.opts.Program != "" }

func elsewhere() string {
	return "wsl2 is only available on Windows, current platform: " + runtime.GOOS
}

// Find returns the path of wsl.exe: "" is the one in PATH. Kinds: ErrUnavailable.
func Find(program string) (string, error) {
	w, err := New(Options{Program: program}).program()
	return w.path, err
}

// program finds wsl.exe.
func (d *Driver) program() (wsl, error) {
	name := d.opts.Program
	if name == "" {
		name = "wsl.exe"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return wsl{}, atoll.Errorf("", "", atoll.ErrUnavailable, "%w: %s", err, fixInstall)
	}
	return wsl{path}, nil
}

const fixInstall = "run as an administrator: wsl --install --no-distribution; and restart Windows"

var _ vm.Driver = (*Driver)(nil)
