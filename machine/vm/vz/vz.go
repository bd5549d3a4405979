// Package vz runs machines with Apple's Virtualization.framework on macOS 12 and later, by the
// program vfkit: each machine is a process of vfkit, which ends with the process that started it.
// So this package needs neither cgo nor a signature; vfkit needs the entitlement
// com.apple.security.virtualization, which that of Homebrew has.
package vz

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// Options configure where vfkit is.
type Options struct {
	// Program is the path of vfkit; empty means the one in PATH, on macOS.
	Program string
}

// A Driver creates machines with vfkit.
type Driver struct{ opts Options }

// New returns a driver. It does not look for vfkit yet.
func New(opts Options) *Driver { return &Driver{opts} }

// Name implements vm.Driver.
func (d *Driver) Name() string { return "vz" }

// Caps implements vm.Driver. vfkit shares directories only for writing, and the framework's network
// cards have a fixed MTU.
func (d *Driver) Caps() vm.Caps {
	return vm.Caps{Pause: true, Network: true, Shares: true, Formats: []vm.Format{vm.FormatRaw}}
}

// guestCID is the CID of every machine of the framework.
const guestCID = 3

// New implements vm.Driver.
func (d *Driver) New(h *vm.Hardware) (vm.Machine, error) {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("machine", h.ID, atoll.ErrInvalid, format, args...)
	}
	cannot := func(format string, args ...any) error {
		return atoll.Errorf("machine", h.ID, atoll.ErrUnsupported, format, args...)
	}
	if !d.isSupported() {
		return nil, cannot("%s", unsupportedReason())
	}
	if err := h.Validate(d.Caps()); err != nil {
		return nil, err
	}
	m := &machine{driver: d, hardware: *h, dir: filepath.Join(h.Dir, baseDir)}
	m.hardware.Cmdline, m.hardware.Disks, m.hardware.Shares, m.hardware.Ports = slices.Clone(h.Cmdline), slices.Clone(h.Disks), slices.Clone(h.Shares), slices.Clone(h.Ports)
	cmdline := strings.Join(m.kernelCmdline(), " ")
	switch {
	case !filepath.IsAbs(h.Dir):
		return nil, bad("directory %q: must be absolute", h.Dir)
	case strings.Trim(h.Dir, socketPathChars) != "":
		return nil, bad("directory %q: vfkit takes only letters, digits and \"/-_.\" in the paths of sockets: use another one", h.Dir)
	case h.CID != 0 && h.CID != guestCID:
		return nil, cannot("CID %d: machines of vz all have %d, leave it at 0", h.CID, guestCID)
	case h.Kernel == "":
		return nil, bad("no kernel given: vz boots an uncompressed one")
	case strings.ContainsAny(cmdline, "\"\n\x00"):
		return nil, bad("kernel's command line %q: vfkit takes no quotes and line ends in it", cmdline)
	}
	for _, p := range slices.Concat([]string{h.Kernel, h.Initrd}, diskAndSharePaths(h)) {
		if strings.ContainsAny(p, ",\"\n\x00") {
			return nil, bad("path %q: vfkit takes no commas, quotes and line ends in paths", p)
		}
	}
	seen := map[uint32]bool{}
	for _, p := range h.Ports {
		if p == 0 || seen[p] {
			return nil, bad("port %d: is 0 or given twice", p)
		}
		seen[p] = true
	}
	if err := checkUncompressed(h.Kernel); err != nil {
		return nil, bad("%w", err)
	}
	return m, nil
}

const socketPathChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/-_."

// diskAndSharePaths returns the paths of disks and shares.
func diskAndSharePaths(h *vm.Hardware) (all []string) {
	for _, d := range h.Disks {
		all = append(all, d.Path)
	}
	for _, s := range h.Shares {
		all = append(all, s.Dir)
	}
	return all
}

// checkUncompressed returns an error if a kernel is compressed: the framework then hangs without an
// error.
func checkUncompressed(kernel string) error {
	f, err := os.Open(kernel)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, 64)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New(kernel + ": is not a kernel: it is empty")
	}
	head = head[:n]
	for name, magic := range map[string]string{
		"gzip": "\x1f\x8b", "zstd": "\x28\xb5\x2f\xfd", "xz": "\xfd7zXZ", "lzma": "\x5d\x00\x00", "bzip2": "BZh",
	} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return errors.New(kernel + ": is compressed with " + name + ": decompress it")
		}
	}
	if n >= 8 && string(head[4:8]) == "zimg" {
		return errors.New(kernel + ": is a compressed EFI image: use the Image of the same kernel, or unpack it")
	}
	return nil
}

// isSupported reports whether vfkit can exist on this system.
func (d *Driver) isSupported() bool { return runtime.GOOS == "darwin" || d.opts.Program != "" }

// unsupportedReason returns the reason why vz does not run on this system.
func unsupportedReason() string {
	return "vz sandbox provider is only available on macOS (darwin), current platform: " + runtime.GOOS
}

// Find returns the path of vfkit: "" stands for the one in PATH. Kinds: ErrUnavailable.
func Find(program string) (string, error) { return New(Options{Program: program}).findVfkit() }

// findVfkit returns the absolute path of vfkit.
func (d *Driver) findVfkit() (string, error) {
	name := d.opts.Program
	if name == "" {
		name = "vfkit"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", atoll.Errorf("", "", atoll.ErrUnavailable, "%w: %s", err, fixInstall)
	}
	return filepath.Abs(path)
}

// The fixes that errors suggest.
const (
	fixInstall = "brew install vfkit"
	fixSign    = "sign vfkit with the entitlement: make sign VFKIT=$(which vfkit)"
)

var _ vm.Driver = (*Driver)(nil)
