// Package vz makes machines with Apple's Virtualization.framework on macOS 12 and later,
// by the program vfkit: each machine is a process of that, which ends with the one that
// has started it. So nothing here needs cgo or a signature; vfkit has to have the
// entitlement com.apple.security.virtualization, as that of Homebrew has.
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

// Options say where vfkit is.
type Options struct {
	// Program is the path of vfkit; empty means the one in PATH, on macOS.
	Program string
}

// A Driver makes machines with vfkit.
type Driver struct{ opts Options }

// New returns a driver. It looks for nothing yet.
func New(opts Options) *Driver { return &Driver{opts} }

// Name implements vm.Driver.
func (d *Driver) Name() string { return "vz" }

// Caps implements vm.Driver. vfkit shares directories for writing only, and leaves the
// framework's cards the MTU that they have.
func (d *Driver) Caps() vm.Caps {
	return vm.Caps{Pause: true, Network: true, Shares: true, Formats: []vm.Format{vm.FormatRaw}}
}

// guestCID is what every machine of the framework has.
const guestCID = 3

// New implements vm.Driver.
func (d *Driver) New(h *vm.Hardware) (vm.Machine, error) {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("machine", h.ID, atoll.ErrInvalid, format, args...)
	}
	cannot := func(format string, args ...any) error {
		return atoll.Errorf("machine", h.ID, atoll.ErrUnsupported, format, args...)
	}
	if !d.here() {
		return nil, cannot("%s", elsewhere())
	}
	if err := h.Validate(d.Caps()); err != nil {
		return nil, err
	}
	m := &machine{d: d, h: *h, dir: filepath.Join(h.Dir, baseDir)}
	m.h.Cmdline, m.h.Disks, m.h.Shares, m.h.Ports = slices.Clone(h.Cmdline), slices.Clone(h.Disks), slices.Clone(h.Shares), slices.Clone(h.Ports)
	cmdline := strings.Join(m.cmdline(), " ")
	switch {
	case !filepath.IsAbs(h.Dir):
		return nil, bad("directory %q: must be absolute", h.Dir)
	case strings.Trim(h.Dir, plain) != "":
		return nil, bad("directory %q: vfkit takes only letters, digits and \"/-_.\" in the paths of sockets: use another one", h.Dir)
	case h.CID != 0 && h.CID != guestCID:
		return nil, cannot("CID %d: machines of vz all have %d, leave it at 0", h.CID, guestCID)
	case h.Kernel == "":
		return nil, bad("there is no kernel: vz boots an uncompressed one")
	case strings.ContainsAny(cmdline, "\"\n\x00"):
		return nil, bad("kernel's command line %q: vfkit takes no quotes and line ends in it", cmdline)
	}
	for _, p := range slices.Concat([]string{h.Kernel, h.Initrd}, paths(h)) {
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
	if err := uncompressed(h.Kernel); err != nil {
		return nil, bad("%w", err)
	}
	return m, nil
}

const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/-_."

// paths are those of disks and shares.
func paths(h *vm.Hardware) (all []string) {
	for _, d := range h.Disks {
		all = append(all, d.Path)
	}
	for _, s := range h.Shares {
		all = append(all, s.Dir)
	}
	return all
}

// uncompressed reports whether a kernel is: with any other the framework hangs without a
// word.
func uncompressed(kernel string) error {
	f, err := os.Open(kernel)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, 64)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New(kernel + ": is no kernel: it is empty")
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
		return errors.New(kernel + ": is a compressed EFI image: take the Image of the same kernel, or unpack what is in it")
	}
	return nil
}

// here reports whether there can be vfkit on this system.
func (d *Driver) here() bool { return runtime.GOOS == "darwin" || d.opts.Program != "" }

func elsewhere() string {
	return "vz sandbox provider is only available on macOS (darwin), current platform: " + runtime.GOOS
}

// Find returns the path of vfkit: "" is the one in PATH. Kinds: ErrUnavailable.
func Find(program string) (string, error) { return New(Options{Program: program}).program() }

// program finds vfkit.
func (d *Driver) program() (string, error) {
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

// What to do about it.
const (
	fixInstall = "brew install vfkit"
	fixSign    = "sign vfkit with the entitlement: make sign VFKIT=$(which vfkit)"
)

var _ vm.Driver = (*Driver)(nil)
