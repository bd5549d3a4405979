// Package wsl2 runs machines with the Windows Subsystem for Linux: each is a distribution of its
// own, created by the program wsl.exe, whose stdin and stdout connect to the guest.
//
// All distributions of a user share one virtual machine with its kernel, network, CPUs and memory:
// a hypervisor protects Windows, and machines are separated from each other like containers. Unlike
// other distributions they see neither the drives of Windows nor its programs.
//
// With Hardware.Home a distribution belongs to that directory, which holds its disk: it stays when
// its machine ends, with all its files, until Forget removes it.
package wsl2

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// Options configure where WSL is, and the guest of its distributions.
type Options struct {
	// Program is the path of wsl.exe; empty means the one in PATH, on Windows.
	Program string
	// Guest is the program that each machine runs as root: its path in Hardware.Root, and its
	// arguments. It serves its ports on stdin and stdout, by package mux's Guest, and ends when
	// stdin does, or when vm.PortPowerOff is dialled. With Hardware.Home and the one argument
	// "unpack" it writes the archive on its stdin over the root file system, in a way that a second
	// run completes an interrupted first one.
	Guest []string
}

// A Driver creates machines with WSL.
type Driver struct{ opts Options }

// New returns a driver. It does not look for WSL yet.
func New(opts Options) *Driver { return &Driver{opts} }

// Name implements vm.Driver.
func (d *Driver) Name() string { return "wsl2" }

// Caps implements vm.Driver.
func (d *Driver) Caps() vm.Caps {
	return vm.Caps{Online: true, Frames: true, MTU: maxMTU, Root: true, Sizeless: true}
}

// maxMTU leaves room for the head of a frame, whose length field has two bytes.
const maxMTU = 65520

// distroPrefix begins the names of Atoll's distributions.
const distroPrefix = "atoll-"

// maxID bounds the id of a machine, which becomes the name of a directory, in bytes.
const maxID = 64

// New implements vm.Driver.
func (d *Driver) New(h *vm.Hardware) (vm.Machine, error) {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("machine", h.ID, atoll.ErrInvalid, format, args...)
	}
	cannot := func(what string) error {
		return atoll.Errorf("machine", h.ID, atoll.ErrUnsupported, "wsl2 has no %s", what)
	}
	if !d.isSupported() {
		return nil, atoll.Errorf("machine", h.ID, atoll.ErrUnsupported, "%s", unsupportedReason())
	}
	if err := h.Validate(d.Caps()); err != nil {
		return nil, err
	}
	switch {
	case len(h.ID) > maxID || strings.Trim(h.ID, idLetters) != "":
		return nil, bad("id %q: use 1..%d letters, digits and '-'", h.ID, maxID)
	case !filepath.IsAbs(h.Dir):
		return nil, bad("directory %q: must be absolute", h.Dir)
	case h.Home != "" && !filepath.IsAbs(h.Home):
		return nil, bad("home %q: must be absolute", h.Home)
	case h.CID != 0:
		return nil, cannot("choice of a vsock address: leave the CID at 0, ports work without")
	case len(d.opts.Guest) == 0 || !strings.HasPrefix(d.opts.Guest[0], "/"):
		return nil, bad("the guest %q must be a path in the root archive, and arguments", d.opts.Guest)
	}
	return &machine{driver: d, hardware: *h, root: distroOf(h)}, nil
}

const idLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"

// isSupported reports whether WSL can exist on this system.
func (d *Driver) isSupported() bool { return runtime.GOOS == "windows" || d.opts.Program != "" }

// unsupportedReason returns the reason why wsl2 does not run on this system.
func unsupportedReason() string {
	return "wsl2 is only available on Windows, current platform: " + runtime.GOOS
}

// Find returns the path of wsl.exe: "" stands for the one in PATH. Kinds: ErrUnavailable.
func Find(program string) (string, error) {
	w, err := New(Options{Program: program}).findWSL()
	return w.path, err
}

// findWSL returns wsl.exe.
func (d *Driver) findWSL() (wsl, error) {
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
