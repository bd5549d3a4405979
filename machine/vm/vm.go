// Package vm puts virtual machines behind one small interface: a Driver for each hypervisor (qemu,
// firecracker, vz, wsl2) creates Machines, which boot, connect to ports of their guest, and end.
// The package does not know what runs inside: providers put a guest there (see package guest).
package vm

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A Driver creates machines with one hypervisor. All methods may be called at once.
type Driver interface {
	// Name returns "qemu", "firecracker", "vz" or "wsl2".
	Name() string
	// Caps returns the capabilities of its machines. It does not block.
	Caps() Caps
	// Probe finds out whether machines work here, by trying.
	Probe(ctx context.Context) atoll.Probe
	// New returns a machine that is not started. It checks h, which it neither retains nor changes,
	// and creates nothing. Kinds: ErrInvalid, ErrUnsupported.
	New(h *Hardware) (Machine, error)
}

// Caps lists what a driver's machines can do. It tells the truth.
type Caps struct {
	Emulated bool     `json:"emulated"` // without hardware support: everything takes many times as long
	Snapshot bool     `json:"snapshot"` // Snapshot, and Hardware.Snapshot
	Pause    bool     `json:"pause"`    // Pause and Resume
	Network  bool     `json:"network"`  // Hardware.Network
	MTU      int      `json:"mtu"`      // the largest Hardware.MTU; 0 means DefaultMTU
	Shares   bool     `json:"shares"`   // Hardware.Shares
	Locked   bool     `json:"locked"`   // Share.ReadOnly
	Online   bool     `json:"online"`   // machines have a network of the hypervisor, also without Hardware.Network: the guest has to keep programs off it
	Frames   bool     `json:"frames"`   // instead of Hardware.Network, up to Caps.MTU: see PortNetwork
	Root     bool     `json:"root"`     // Hardware.Root and Hardware.Home, instead of a kernel and disks
	Sizeless bool     `json:"sizeless"` // CPUs and memory are shared: Hardware.CPUs and Hardware.Memory are 0
	ELF      bool     `json:"elf"`      // on amd64 Hardware.Kernel is a vmlinux, not a bzImage
	Vsock    bool     `json:"vsock"`    // Dial needs a Hardware.CID, which is private to the machine: any number works
	Formats  []Format `json:"formats"`  // of disks
}

// Hardware describes a machine. All paths are absolute paths of this computer.
type Hardware struct {
	// ID names the machine, in the names of processes and in logs.
	ID string
	// Dir is an existing directory, private to the machine and its user, for sockets and other
	// files of the machine. Its path has at most MaxDir bytes, since paths of sockets have at most
	// 107; with Caps.Root, which has no sockets, it may be longer.
	Dir string
	// Console is a file to which the machine's output is appended. Its directory exists. Empty
	// means that the output is dropped.
	Console string

	CPUs   int         // 1..MaxCPUs
	Memory atoll.Bytes // MinMemory..MaxMemory, a multiple of 1 MiB

	// Root is a tar archive, plain or gzip, with the root file system, for a hypervisor that brings
	// its own kernel: such a machine has Root instead of the fields below.
	Root string
	// Home is a directory that retains the root file system made from Root after the machine has
	// ended: the next machine with the same Home, whatever its ID, continues with it. If Root is
	// another archive by then, its files are written over the existing ones, and nothing is
	// removed. The driver creates a missing Home. Two machines cannot use one Home at once. See
	// Homer. "" means that the root file system is removed with the machine.
	Home string

	Kernel  string
	Initrd  string   // "" for none
	Cmdline []string // besides what the driver needs

	Disks  []Disk  // the first is vda
	Shares []Share // directories that the guest can mount
	// Ports lists the guest's ports that the host will dial, for hypervisors that have to know. 0
	// stands for none.
	Ports []uint32
	// CID is the vsock address of the guest, at least 3, and unique on this host; see CIDs. 0 means
	// no vsock.
	CID uint32
	// Network is a datagram socket on which each message is an Ethernet frame, as internal/usernet
	// uses it. nil means no network card. The machine closes it, also if it does not start.
	Network *os.File
	MAC     net.HardwareAddr // of that card; needed with it
	MTU     int              // of that card; 0 means DefaultMTU

	// Snapshot is a directory written by Machine.Snapshot, to resume from.
	Snapshot string
}

// The bounds of Hardware.
const (
	MaxCPUs           = 32
	MinMemory         = 128 << 20
	MaxMemory         = 32 << 30
	MaxDir            = 80
	DefaultMTU        = 1500
	MinCID     uint32 = 3 // 0, 1 and 2 are the hypervisor, the machine itself and its host
)

// A Disk is a file or a device that the guest sees as a disk.
type Disk struct {
	ID       string // up to 20 letters, digits and '-': the guest finds the disk by it, or by WordDisks
	Path     string
	Format   Format // "" means FormatRaw
	ReadOnly bool
}

// Format is the format of a disk's file.
type Format string

// The formats.
const (
	FormatRaw   Format = "raw"
	FormatQcow2 Format = "qcow2"
)

// A Share is a directory of the host that the guest can mount, by its tag.
type Share struct {
	Tag      string // of up to 36 bytes
	Dir      string
	ReadOnly bool
}

// A Machine is a virtual machine. It starts once. All methods may be called at once; all but Start
// only after Start has returned. The caller of Start has to call Kill, which frees all resources of
// the machine, also after the machine has ended by itself.
type Machine interface {
	// Start turns the machine on, and returns when the hypervisor runs: the guest may take its
	// time. If it fails, it leaves nothing behind. ctx bounds the call.
	Start(ctx context.Context) error
	// Dial connects to a port of the guest. It waits for a booting guest as long as ctx lasts.
	// Kinds: ErrUnavailable, if nothing listens there or the machine has ended. The connection
	// closes with the machine, and can half-close if it has CloseWrite.
	Dial(ctx context.Context, port uint32) (net.Conn, error)
	// Stop asks the guest to power off, and returns when the machine has ended. If ctx ends first,
	// Stop returns ctx's error, and the machine goes on.
	Stop(ctx context.Context) error
	// Kill ends the machine at once, and returns when nothing of it is left. A second call does
	// nothing.
	Kill() error
	// Wait returns when the machine has ended: nil after Stop, Kill or a power-off by the guest,
	// else the reason. If ctx ends first, Wait returns ctx's error.
	Wait(ctx context.Context) error
	// Pause stops the machine's clock, and Resume restarts it. Kinds: ErrUnsupported, without
	// Caps.Pause.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Snapshot writes the machine's memory and devices, but not its disks, into dir, which it
	// creates, and leaves the machine paused. Kinds: ErrUnsupported, without Caps.Snapshot.
	Snapshot(ctx context.Context, dir string) error
}

// A Staller is a Machine that stops by itself while the host has no room for the guest's writes to
// its disks, and goes on when there is: nothing is lost.
type Staller interface {
	// Stalled reports whether the machine is stopped for that, and how often it was.
	Stalled() (now bool, times int)
}

// A Homer is a Driver that supports Hardware.Home. It has Caps.Root.
type Homer interface {
	// Forget removes the data of machines in a Home, and the hypervisor's record of it. It does
	// nothing if there is neither. Kinds: ErrConflict, while a machine uses the Home.
	Forget(ctx context.Context, home string) error
}

// Validate returns an error for values that no driver accepts, and for features that caps lacks.
// Kinds: ErrInvalid, ErrUnsupported.
func (h *Hardware) Validate(caps Caps) error {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("machine", h.ID, atoll.ErrInvalid, format, args...)
	}
	cannot := func(what string) error {
		return atoll.Errorf("machine", h.ID, atoll.ErrUnsupported, "this hypervisor has no %s", what)
	}
	switch {
	case h.ID == "":
		return bad("the machine has no id")
	case h.Dir == "" || len(h.Dir) > MaxDir && !caps.Root:
		return bad("directory %q: must be a path of 1..%d bytes", h.Dir, MaxDir)
	case caps.Sizeless && (h.CPUs != 0 || h.Memory != 0):
		return cannot("CPUs and memory for each machine: leave both at 0")
	case caps.Sizeless:
	case h.CPUs < 1 || h.CPUs > MaxCPUs:
		return bad("%d CPUs: must be within 1..%d", h.CPUs, MaxCPUs)
	case h.Memory < MinMemory || h.Memory > MaxMemory:
		return bad("memory %s: must be within %s..%s", h.Memory, atoll.Bytes(MinMemory), atoll.Bytes(MaxMemory))
	case h.Memory%(1<<20) != 0:
		return bad("memory %d: must be a multiple of 1 MiB", h.Memory)
	}
	switch {
	case h.CID != 0 && h.CID < MinCID:
		return bad("CID %d: must be at least %d", h.CID, MinCID)
	case h.Root != "" && !caps.Root:
		return cannot("root archives: make a disk of it")
	case h.Home != "" && !caps.Root:
		return cannot("root file system that outlives the machine: give it disks")
	case caps.Root && (h.Kernel != "" || h.Initrd != "" || len(h.Cmdline) > 0):
		return cannot("choice of a kernel: give it a root archive only")
	case caps.Root && len(h.Disks) > 0:
		return cannot("disks: put what is on them into the root archive")
	case caps.Root && h.Root == "":
		return bad("no root archive: this hypervisor needs a tar of a root file system")
	case h.Network != nil && caps.Frames:
		return cannot(fmt.Sprintf("network card to configure: dial port %d", PortNetwork))
	case h.Network != nil && !caps.Network:
		return cannot("network")
	case h.Network != nil && len(h.MAC) != 6:
		return bad("MAC %q: must be six bytes", h.MAC)
	case h.MTU > max(caps.MTU, DefaultMTU):
		return cannot(fmt.Sprintf("frames that large: the MTU is %d at most", max(caps.MTU, DefaultMTU)))
	case len(h.Shares) > 0 && !caps.Shares:
		return cannot("shared directories")
	case h.Snapshot != "" && !caps.Snapshot:
		return cannot("snapshots")
	}
	seen := map[string]bool{}
	for _, d := range h.Disks {
		switch {
		case len(d.ID) > maxDiskID || !isPlain(d.ID):
			return bad("disk %q: use 1..%d letters, digits and '-'", d.ID, maxDiskID)
		case seen[d.ID]:
			return bad("disk %q: given twice", d.ID)
		case d.Path == "":
			return bad("disk %q: has no path", d.ID)
		case !slices.Contains(caps.Formats, d.formatOrRaw()):
			return cannot("disks in format " + string(d.formatOrRaw()))
		}
		seen[d.ID] = true
	}
	tags := map[string]bool{}
	for _, s := range h.Shares {
		switch {
		case len(s.Tag) > maxTag || !isPlain(s.Tag):
			return bad("share %q: use 1..%d letters, digits and '-'", s.Tag, maxTag)
		case tags[s.Tag]:
			return bad("share %q: given twice", s.Tag)
		case s.Dir == "":
			return bad("share %q: has no directory", s.Tag)
		case s.ReadOnly && !caps.Locked:
			return cannot("directories shared read-only: share a copy, or make a read-only disk")
		}
		tags[s.Tag] = true
	}
	return nil
}

// The limits of virtio's devices, in bytes.
const (
	maxDiskID = 20
	maxTag    = 36
)

// formatOrRaw returns the format of the disk, by default FormatRaw.
func (d Disk) formatOrRaw() Format {
	if d.Format == "" {
		return FormatRaw
	}
	return d.Format
}

// isPlain reports whether s consists of letters, digits and '-', and is not empty.
func isPlain(s string) bool {
	for _, c := range []byte(s) {
		if ('a' > c || c > 'z') && ('A' > c || c > 'Z') && ('0' > c || c > '9') && c != '-' {
			return false
		}
	}
	return s != ""
}

// Scale multiplies a time limit for work of the guest with how much slower a driver's machines are
// than hardware.
func Scale(c Caps, d time.Duration) time.Duration {
	if c.Emulated {
		return emulation * d
	}
	return d
}

// emulation is the slowdown, against hardware, of the slowest measured emulated machines, with all
// CPUs of their host busy.
const emulation = 10
