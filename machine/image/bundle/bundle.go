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

// A Manifest says what is in a bundle and what it was made from. It has no times and
// no names of machines: what was made from the same has the same.
type Manifest struct {
	Version int      `json:"version"`         // of this format: ManifestVersion
	Arch    string   `json:"arch"`            // "amd64", "arm64": as Go spells it
	Kernel  Kernel   `json:"kernel,omitzero"` // none where the root is an archive,
	Initrd  Initrd   `json:"initrd,omitzero"` // and no initrd either
	Disks   []Disk   `json:"disks"`           // the first is the root
	Init    *vm.Init `json:"init,omitempty"`  // what the guest does before it serves
}

// ManifestVersion is the version of manifests that this package reads and writes.
const ManifestVersion = 1

// A Kernel is one in the formats that hypervisors take.
type Kernel struct {
	File
	Release string `json:"release,omitempty"` // "6.1.0-56-cloud-amd64"
	Package string `json:"package,omitempty"` // "linux-image-6.1.0-56-cloud-amd64=6.1.192-2", or the file that it came from
	// ELF is the same kernel unpacked, for Firecracker; nil for one that has no such.
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
	ID     string `json:"id"`     // by which the guest finds it
	Format string `json:"format"` // FormatSquashfs or FormatArchive

	Image    string   `json:"image,omitempty"`    // digest of the OCI image that it was made from
	Config   *Config  `json:"config,omitempty"`   // of that image
	Suite    string   `json:"suite,omitempty"`    // or of which Debian,
	Packages []string `json:"packages,omitempty"` // all that is installed, "name=version"

	Guest string `json:"guest,omitempty"` // digest of the program in an archive, at GuestPath
}

// The formats of disks.
const (
	FormatSquashfs = "squashfs"
	FormatArchive  = "tar.gz" // for hypervisors that bring a kernel, which have no disk but the root
)

// GuestPath is where an archive has the guest's program.
const GuestPath = "/usr/sbin/atoll-guest"

// Config is what an image says about running it.
type Config struct {
	Env        []string `json:"env,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	User       string   `json:"user,omitempty"`
	Workdir    string   `json:"workdir,omitempty"`
}

// A File is one of a bundle.
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
	lockName     = "lock" // its modification time is that of the last use
)

const (
	maxManifest = 4 << 20
	maxFiles    = 32
)

// A Bundle is one in a Store.
type Bundle struct {
	Manifest
	Names  []string // in the store, sorted
	Digest string   // of the manifest, and so of everything
	Dir    string   // is never changed
	Made   time.Time
	Used   time.Time // when it was last got
}

// Path is where f, a file of the bundle, lies.
func (b *Bundle) Path(f File) string { return filepath.Join(b.Dir, f.Name) }

// Size is that of all files.
func (m *Manifest) Size() (n atoll.Bytes) {
	for _, f := range m.files() {
		n += f.Size
	}
	return n
}

// Root is the disk with the root file system.
func (m *Manifest) Root() Disk { return m.Disks[0] }

// IsArchive reports whether the bundle is a root archive, for hypervisors that bring a
// kernel. Else it has a kernel, an initrd and disks, for all others.
func (m *Manifest) IsArchive() bool { return m.Root().Format == FormatArchive }

func (m *Manifest) files() (list []File) {
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
	digestForm = form(`^sha256:[0-9a-f]{64}$`)
	fileForm   = form(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	archForm   = form(`^[a-z0-9]{1,16}$`)
	idForm     = form(`^[a-zA-Z0-9-]{1,20}$`) // what virtio's serials can be
)

// form compiles an expression when it is first used: most programs that import this
// package never do.
func form(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// parseManifest reads a manifest, which may come from anywhere.
func parseManifest(raw []byte) (*Manifest, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	var m Manifest
	if err := d.Decode(&m); err != nil {
		return nil, damaged(err, "the manifest is not one")
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, damaged(nil, "the manifest is not one: something follows it")
	}
	switch {
	case m.Version != ManifestVersion:
		return nil, damaged(nil, "the manifest has version %d, and this program reads %d", m.Version, ManifestVersion)
	case !archForm().MatchString(m.Arch):
		return nil, damaged(nil, "the manifest is for %q, which is no architecture", m.Arch)
	case len(m.Disks) == 0 || m.Disks[0].ID != RootDisk:
		return nil, damaged(nil, "the manifest has no root disk")
	case m.IsArchive() && (len(m.Disks) > 1 || m.Kernel.Name != "" || m.Kernel.ELF != nil || m.Initrd.Name != ""):
		return nil, damaged(nil, "the manifest has a root archive, beside which nothing is booted")
	case len(m.files()) > maxFiles:
		return nil, damaged(nil, "the manifest has more than %d files", maxFiles)
	}
	seen := []string{manifestName, lockName}
	var total atoll.Bytes
	for _, f := range m.files() {
		switch {
		case !fileForm().MatchString(f.Name) || slices.Contains(seen, f.Name):
			return nil, damaged(nil, "the manifest has a file %q, which is no name for one, or there twice", f.Name)
		case !digestForm().MatchString(f.Digest):
			return nil, damaged(nil, "the digest of %s is %q: it must be sha256:...", f.Name, f.Digest)
		case f.Size <= 0 || f.Size > maxSize-total:
			return nil, damaged(nil, "%s cannot have %d bytes", f.Name, int64(f.Size))
		}
		total += f.Size
		seen = append(seen, f.Name)
	}
	ids := map[string]bool{}
	for _, disk := range m.Disks {
		switch {
		case !idForm().MatchString(disk.ID) || ids[disk.ID]:
			return nil, damaged(nil, "the manifest has a disk %q, which is no id for one, or there twice", disk.ID)
		case disk.Format != FormatSquashfs && !(disk.Format == FormatArchive && disk.ID == RootDisk):
			return nil, damaged(nil, "disk %s is in format %q, which is not known", disk.ID, disk.Format)
		}
		ids[disk.ID] = true
	}
	return &m, nil
}

// maxSize bounds a bundle.
const maxSize = 64 << 30

// encode is the manifest as it is written, and of which the digest is taken.
func (m *Manifest) encode() ([]byte, error) {
	b, err := json.MarshalIndent(m, "", "\t")
	return append(b, '\n'), err
}
