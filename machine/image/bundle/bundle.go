package bundle

import (
	"bytes"
	"encoding/json"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// A Manifest lists the contents of a bundle and the sources that it was built from. It
// has no times and no names of machines: equal sources give equal manifests.
type Manifest struct {
	Version int      `json:"version"`         // of this format: ManifestVersion
	Arch    string   `json:"arch"`            // "amd64", "arm64": as Go spells it
	Kernel  Kernel   `json:"kernel,omitzero"` // empty if the root is an archive
	Initrd  Initrd   `json:"initrd,omitzero"` // empty if the root is an archive
	Disks   []Disk   `json:"disks"`           // the first is the root
	Init    *vm.Init `json:"init,omitempty"`  // what the guest does before it serves
}

// ManifestVersion is the version of manifests that this package reads and writes.
const ManifestVersion = 1

// A Kernel is a kernel in the formats that hypervisors boot.
type Kernel struct {
	File
	Release string `json:"release,omitempty"` // "6.1.0-56-cloud-amd64"
	Package string `json:"package,omitempty"` // "linux-image-6.1.0-56-cloud-amd64=6.1.192-2", or the name of its file
	// ELF is the same kernel unpacked, for Firecracker; nil for a kernel without an ELF file.
	ELF *File `json:"elf,omitempty"`
}

// An Initrd holds the guest's program and the modules that it loads.
type Initrd struct {
	File
	Guest   string   `json:"guest"`   // digest of the program
	Modules []string `json:"modules"` // names, in the order of loading
}

// A Disk is a read-only file system, or an archive of one.
type Disk struct {
	File
	ID     string `json:"id"`     // the guest finds the disk by it
	Format string `json:"format"` // FormatSquashfs or FormatArchive

	Image    string   `json:"image,omitempty"`    // digest of the OCI image that the disk was built from
	Config   *Config  `json:"config,omitempty"`   // of that image
	Suite    string   `json:"suite,omitempty"`    // of Debian, for a disk without an image
	Packages []string `json:"packages,omitempty"` // all installed packages, "name=version"

	Guest string `json:"guest,omitempty"` // digest of the program in an archive, at GuestPath
}

// The formats of disks.
const (
	FormatSquashfs = "squashfs"
	FormatArchive  = "tar.gz" // for hypervisors that bring a kernel, which have no disk but the root
)

// GuestPath is the path of the guest's program in an archive.
const GuestPath = "/usr/sbin/atoll-guest"

// Config is the part of an image's configuration that says how to run it.
type Config struct {
	Env        []string `json:"env,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	User       string   `json:"user,omitempty"`
	Workdir    string   `json:"workdir,omitempty"`
}

// A File is a file of a bundle.
type File struct {
	Name   string      `json:"name"` // in the bundle's directory
	Size   atoll.Bytes `json:"size"`
	Digest string      `json:"digest"` // "sha256:..."
}

// RootDisk is the ID of the disk with the root file system.
const RootDisk = "root"

// Names of files in a bundle.
const (
	manifestName = "manifest.json"
	kernelName   = "kernel"
	elfName      = "vmlinux"
	initrdName   = "initrd"
	lockName     = "lock" // its modification time records the last use
)

const (
	maxManifest = 4 << 20
	maxFiles    = 32
)

// A Bundle is a bundle in a Store.
type Bundle struct {
	Manifest
	Names  []string // in the store, sorted
	Digest string   // of the manifest, which has those of the files
	Dir    string   // never changes
	Made   time.Time
	Used   time.Time // time of the last Get
}

// Path returns the path of f, a file of the bundle.
func (b *Bundle) Path(f File) string { return filepath.Join(b.Dir, f.Name) }

// Size returns the size of all files.
func (m *Manifest) Size() (n atoll.Bytes) {
	for _, f := range m.listFiles() {
		n += f.Size
	}
	return n
}

// Root returns the disk with the root file system.
func (m *Manifest) Root() Disk { return m.Disks[0] }

// IsArchive reports whether the bundle is a root archive, for hypervisors that bring a
// kernel. A bundle for other hypervisors has a kernel, an initrd and disks.
func (m *Manifest) IsArchive() bool { return m.Root().Format == FormatArchive }

func (m *Manifest) listFiles() (list []File) {
	if !m.IsArchive() {
		list = append(list, m.Kernel.File)
		if m.Kernel.ELF != nil {
			list = append(list, *m.Kernel.ELF)
		}
		list = append(list, m.Initrd.File)
	}
	for _, d := range m.Disks {
		list = append(list, d.File)
	}
	return list
}

var (
	digestForm = lazyRegexp(`^sha256:[0-9a-f]{64}$`)
	fileForm   = lazyRegexp(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	archForm   = lazyRegexp(`^[a-z0-9]{1,16}$`)
	idForm     = lazyRegexp(`^[a-zA-Z0-9-]{1,20}$`) // the limits of a virtio serial
)

// lazyRegexp compiles an expression at its first use: most programs that import this
// package never use it.
func lazyRegexp(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// parseManifest parses and checks a manifest, which may be hostile.
func parseManifest(raw []byte) (*Manifest, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	var m Manifest
	if err := d.Decode(&m); err != nil {
		return nil, newDamageError(err, "not a valid manifest")
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, newDamageError(nil, "not a valid manifest: trailing data after the JSON value")
	}
	switch {
	case m.Version != ManifestVersion:
		return nil, newDamageError(nil, "the manifest has version %d, and this program reads %d", m.Version, ManifestVersion)
	case !archForm().MatchString(m.Arch):
		return nil, newDamageError(nil, "the manifest has the invalid architecture %q", m.Arch)
	case len(m.Disks) == 0 || m.Disks[0].ID != RootDisk:
		return nil, newDamageError(nil, "the manifest has no root disk")
	case m.IsArchive() && (len(m.Disks) > 1 || m.Kernel.Name != "" || m.Kernel.ELF != nil || m.Initrd.Name != ""):
		return nil, newDamageError(nil, "the manifest has a root archive, and also a kernel, an initrd or other disks")
	case len(m.listFiles()) > maxFiles:
		return nil, newDamageError(nil, "the manifest has more than %d files", maxFiles)
	}
	seen := []string{manifestName, lockName}
	var total atoll.Bytes
	for _, f := range m.listFiles() {
		switch {
		case !fileForm().MatchString(f.Name) || slices.Contains(seen, f.Name):
			return nil, newDamageError(nil, "the manifest has the file name %q, which is invalid or a duplicate", f.Name)
		case !digestForm().MatchString(f.Digest):
			return nil, newDamageError(nil, "the digest of %s is %q: it must be sha256:...", f.Name, f.Digest)
		case f.Size <= 0 || f.Size > maxSize-total:
			return nil, newDamageError(nil, "file %s has the invalid size %d", f.Name, int64(f.Size))
		}
		total += f.Size
		seen = append(seen, f.Name)
	}
	ids := map[string]bool{}
	for _, disk := range m.Disks {
		switch {
		case !idForm().MatchString(disk.ID) || ids[disk.ID]:
			return nil, newDamageError(nil, "the manifest has the disk id %q, which is invalid or a duplicate", disk.ID)
		case disk.Format != FormatSquashfs && !(disk.Format == FormatArchive && disk.ID == RootDisk):
			return nil, newDamageError(nil, "disk %s has the unknown format %q", disk.ID, disk.Format)
		}
		ids[disk.ID] = true
	}
	return &m, nil
}

// maxSize bounds the size of a bundle, in bytes.
const maxSize = 64 << 30

// encodeJSON returns the bytes of the manifest file, whose digest is the bundle's.
func (m *Manifest) encodeJSON() ([]byte, error) {
	b, err := json.MarshalIndent(m, "", "\t")
	return append(b, '\n'), err
}
