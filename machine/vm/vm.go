// Package vm is virtual machines behind one small interface: a Driver for each
// hypervisor (qemu, firecracker, vz, wsl2) makes Machines, of which it is asked to
// boot them, to reach ports in them, and to end them. What runs inside is not its
// business: providers put a guest there (see package guest).
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

// A Driver makes machines with one hypervisor. All methods may be called at once.
type Driver interface {
	// Name is "qemu", "firecracker", "vz" or "wsl2".
	Name() string
	// Caps are those of its machines. It does not block.
	Caps() Caps
	// Probe finds out whether machines work here, by trying.
	Probe(ctx context.Context) atoll.Probe
	// New returns a machine that is not started. It checks h, which it does not
	// keep or change, and makes nothing. Kinds: ErrInvalid, ErrUnsupported.
	New(h *Hardware) (Machine, error)
}

// Caps says what a driver's machines can do. It tells the truth.
type Caps struct {
	Emulated bool     `json:"emulated"` // no hardware helps: everything takes many times as long
	Snapshot bool     `json:"snapshot"` // Snapshot, and Hardware.Snapshot
	Pause    bool     `json:"pause"`    // Pause and Resume
	Network  bool     `json:"network"`  // Hardware.Network
	MTU      int      `json:"mtu"`      // the largest Hardware.MTU; 0 means DefaultMTU
	Shares   bool     `json:"shares"`   // Hardware.Shares
	Locked   bool     `json:"locked"`   // and of those what is Share.ReadOnly
	Online   bool     `json:"online"`   // they have a network of the hypervisor's, also without Hardware.Network: it is the guest that keeps programs off it
	Frames   bool     `json:"frames"`   // instead of Hardware.Network, whose MTU is that of this: see PortNetwork
	Root     bool     `json:"root"`     // Hardware.Root and Hardware.Home, instead of a kernel and disks
	Sizeless bool     `json:"sizeless"` // CPUs and memory are shared: Hardware.CPUs and Hardware.Memory are 0
	ELF      bool     `json:"elf"`      // on amd64 Hardware.Kernel is a vmlinux, and no bzImage
	Vsock    bool     `json:"vsock"`    // Dial takes a Hardware.CID, of which no other machine knows: any does
	Formats  []Format `json:"formats"`  // of disks
}

// Hardware is what a machine is made of. All paths are absolute paths of this
// machine.
type Hardware struct {
	// ID names the machine, in the names of processes and in logs.
	ID string
	// Dir is a directory of the machine's own for sockets and what it writes. It is
	// there, and its user's alone; its path has MaxDir bytes at the most, since those
	// of sockets have 107: but for Caps.Root, with which there are none.
	Dir string
	// Console is a file to which what the machine prints is appended. Its directory is
	// there. Empty means that it is dropped.
	Console string

	CPUs   int         // 1..MaxCPUs
	Memory atoll.Bytes // MinMemory..MaxMemory, a multiple of 1 MiB

	// Root is a tar archive, plain or in gzip, with the root file system, for a
	// hypervisor that brings a kernel of its own: it has this, and others what follows.
	Root string
	// Home is a directory in which the root file system that was made from Root stays
	// when the machine has ended: the next one with the same Home, whatever its ID, goes
	// on with it. When Root is another one by then, what is in it is written over what is
	// there, and nothing is removed. It is made if it is missing; no two machines have one
	// at once. See Homer. "" means that the root file system goes with the machine.
	Home string

	Kernel  string
	Initrd  string   // "" for none
	Cmdline []string // besides what the driver needs

	Disks  []Disk  // the first is vda
	Shares []Share // directories that the guest can mount
	// Ports are those of the guest that the host will dial, for hypervisors that
	// have to know. 0 is none.
	Ports []uint32
	// CID is the address of the guest on vsock, at least 3, and no other machine's on
	// this host; see CIDs. 0 means that there is no vsock.
	CID uint32
	// Network is a datagram socket on which each message is an Ethernet frame, as
	// internal/usernet speaks them. nil means that there is no network card. The
	// machine closes it, also if it does not start.
	Network *os.File
	MAC     net.HardwareAddr // of that card; needed with it
	MTU     int              // of that card; 0 means DefaultMTU

	// Snapshot is a directory that Machine.Snapshot has written, to go on from.
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

// A Disk is a file, or a device, that the guest has as a disk.
type Disk struct {
	ID       string // of up to 20 letters, digits and '-': the guest can find it by that, or by WordDisks
	Path     string
	Format   Format // "" means FormatRaw
	ReadOnly bool
}

// Format is that of a disk's file.
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

// A Machine is a virtual machine. It starts once. All methods may be called at once,
// and those but Start only after it has returned. Who has started one calls Kill, which
// frees all that it holds, also when it has ended by itself.
type Machine interface {
	// Start turns the machine on, and returns when the hypervisor runs: the guest may
	// take its time. When it fails, nothing is left. ctx bounds the call.
	Start(ctx context.Context) error
	// Dial connects to a port of the guest. It waits, as long as ctx lasts, for a guest
	// that is not up; ErrUnavailable says that nothing listens there, or that the
	// machine has ended. The connection is closed with the machine, and half-closes
	// where it has CloseWrite.
	Dial(ctx context.Context, port uint32) (net.Conn, error)
	// Stop asks the guest to power off, and returns when the machine has ended. When
	// ctx ends first it returns ctx's error, and the machine goes on.
	Stop(ctx context.Context) error
	// Kill ends the machine at once, and returns when nothing of it is left. A second
	// one does nothing.
	Kill() error
	// Wait returns when the machine has ended: nil if it was told to or the guest has
	// powered off, else what became of it. When ctx ends first it returns ctx's error.
	Wait(ctx context.Context) error
	// Pause stops the machine's clock, and Resume lets it go on. Kinds:
	// ErrUnsupported, without Caps.Pause.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Snapshot writes the machine's memory and devices, though not its disks, into
	// dir, which it makes, and leaves the machine paused. Kinds: ErrUnsupported,
	// without Caps.Snapshot.
	Snapshot(ctx context.Context, dir string) error
}

// A Staller is a Machine that stands still by itself when there is no room for what its
// guest writes to its disks, and goes on when there is: nothing is lost.
type Staller interface {
	// Stalled reports whether it stands still, and how often it has.
	Stalled() (now bool, times int)
}

// A Homer is a Driver whose machines have a Hardware.Home. It has Caps.Root.
type Homer interface {
	// Forget removes what machines keep in a Home, with what else the hypervisor knows of
	// it. Where there is nothing, nothing is done. Kinds: ErrConflict, while a machine has
	// it.
	Forget(ctx context.Context, home string) error
}

// Validate reports what no driver could make sense of, and what caps says that this
// one cannot do. Kinds: ErrInvalid, ErrUnsupported.
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
		return cannot("root file system of the machine's that stays: give it disks")
	case caps.Root && (h.Kernel != "" || h.Initrd != "" || len(h.Cmdline) > 0):
		return cannot("kernel but its own: give it a root archive only")
	case caps.Root && len(h.Disks) > 0:
		return cannot("disks: put what is on them into the root archive")
	case caps.Root && h.Root == "":
		return bad("there is no root archive, a tar of a root file system, which this hypervisor needs")
	case h.Network != nil && caps.Frames:
		return cannot(fmt.Sprintf("card that can be given: dial port %d", PortNetwork))
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
		case len(d.ID) > maxDiskID || !plain(d.ID):
			return bad("disk %q: use 1..%d letters, digits and '-'", d.ID, maxDiskID)
		case seen[d.ID]:
			return bad("disk %q: given twice", d.ID)
		case d.Path == "":
			return bad("disk %q: has no path", d.ID)
		case !slices.Contains(caps.Formats, d.format()):
			return cannot("disks in format " + string(d.format()))
		}
		seen[d.ID] = true
	}
	tags := map[string]bool{}
	for _, s := range h.Shares {
		switch {
		case len(s.Tag) > maxTag || !plain(s.Tag):
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

// What virtio's devices take.
const (
	maxDiskID = 20
	maxTag    = 36
)

func (d Disk) format() Format {
	if d.Format == "" {
		return FormatRaw
	}
	return d.Format
}

// plain reports whether s has only letters, digits and '-', and any.
func plain(s string) bool {
	for _, c := range []byte(s) {
		if ('a' > c || c > 'z') && ('A' > c || c > 'Z') && ('0' > c || c > '9') && c != '-' {
			return false
		}
	}
	return s != ""
}

// Scale is how much longer what a guest does may take on a driver's machines than on
// hardware: bounds of time are multiplied with it.
func Scale(c Caps, d time.Duration) time.Duration {
	if c.Emulated {
		return emulation * d
	}
	return d
}

// emulation is how much slower the slowest emulated machines were that were measured,
// with all CPUs of their host busy.
const emulation = 10
