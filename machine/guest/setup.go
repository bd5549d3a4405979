package guest

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// An Order is a host's request to a Computer on its control port, one for each connection. It has
// one field set, or Count and Now.
type Order struct {
	Setup *Setup          `json:"setup,omitempty"` // once, and before all others
	Main  bool            `json:"main,omitempty"`  // starts the main process
	Stop  *atoll.Duration `json:"stop,omitempty"`  // asks every process to end, and kills them after that time
	Count bool            `json:"count,omitempty"` // counts processes
	Time  int64           `json:"time,omitempty"`  // sets the clock, in nanoseconds since 1970: it stands still while a machine is paused
	// Now, with Count, is the time of the host's clock, in the unit of Time. The guest sets a clock
	// that is a second or more behind, since clocks fall behind if a hypervisor gets no CPU. It
	// never sets a clock back.
	Now int64 `json:"now,omitempty"`
}

// A Reply answers an Order when it is done.
type Reply struct {
	Kind      atoll.Kind `json:"kind,omitempty"` // "" and no Message mean success
	Message   string     `json:"message,omitempty"`
	Processes int        `json:"processes,omitempty"` // the number of processes besides the kernel's and the guest's own
}

// Err returns why the Order failed, nil if it did not.
func (r Reply) Err(op, id string) error {
	if r.Kind == "" && r.Message == "" {
		return nil
	}
	return atoll.Errorf(op, id, r.Kind, "%s", r.Message)
}

// A Setup configures a Computer.
type Setup struct {
	Config   Config `json:"config"`   // of its one sandbox
	Hostname string `json:"hostname"` // of up to 64 letters, digits and '-'

	// Time is the host's time, in nanoseconds since 1970, and Entropy 32 or more secret random
	// bytes: a machine that resumes from a snapshot has neither of its own.
	Time    int64  `json:"time"`
	Entropy []byte `json:"entropy"`

	Processes int `json:"processes,omitzero"` // the limit; 0 means as many as there is room for

	Root    Root         `json:"root"`
	Mounts  []MachineDir `json:"mounts,omitempty"` // parents before their children
	Network *Interface   `json:"network,omitempty"`
	Trust   []byte       `json:"trust,omitempty"` // a certificate authority, in PEM, that programs have to trust
	Bridges []Bridge     `json:"bridges,omitempty"`

	// Init lists the system programs to start: their processes do not count as the sandbox's.
	Init *vm.Init `json:"init,omitempty"`
}

// Root is the root file system of a Computer: Disk, which is read-only, below Upper, which holds
// all changes. Ids name the disks.
type Root struct {
	Disk  string `json:"disk"`            // a squashfs, an erofs or an ext4
	Upper string `json:"upper,omitempty"` // an ext4, formatted if it is empty; "" means memory
	Fixed bool   `json:"fixed,omitempty"` // read-only after the setup; there is no Upper
}

// SharedFile is the name of a file in the directory by which it is shared.
const SharedFile = "file"

// A MachineDir is a directory of a Computer outside its root file system. It has one of Disk,
// Share, Bind and Size.
type MachineDir struct {
	Target   string      `json:"target"`
	Disk     string      `json:"disk,omitempty"`  // an ext4, formatted if it is empty
	Share    string      `json:"share,omitempty"` // the tag of a directory of the host
	File     bool        `json:"file,omitempty"`  // only the file SharedFile in Share
	Bind     string      `json:"bind,omitempty"`  // another directory of the Computer, to appear here, too
	Size     atoll.Bytes `json:"size,omitzero"`   // of a tmpfs
	ReadOnly bool        `json:"read_only,omitempty"`
}

// Interface is the one network card of a Computer. Addresses have the length of their
// prefix: "192.0.0.2/29".
type Interface struct {
	Addresses []string `json:"addresses"`
	Gateways  []string `json:"gateways"`
	DNS       []string `json:"dns"`
	MTU       int      `json:"mtu,omitzero"`
	MAC       string   `json:"mac,omitempty"` // of a card that the Computer creates: see vm.Caps.Frames; other cards have theirs
}

// A Bridge forwards a port of a Computer, which its host can dial, to an address in it. The TCP
// port of that number is then not available.
type Bridge struct {
	Port    uint32 `json:"port"`
	Network string `json:"network"` // "tcp" or "unix"
	Address string `json:"address"`
}
