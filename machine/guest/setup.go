package guest

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// An Order is what a host asks of a Computer on its control port, once for each
// connection. One of its fields is set, but for Now.
type Order struct {
	Setup *Setup          `json:"setup,omitempty"` // once, and before all others
	Main  bool            `json:"main,omitempty"`  // starts the main process
	Stop  *atoll.Duration `json:"stop,omitempty"`  // asks every process to end, and kills them after so long
	Count bool            `json:"count,omitempty"` // counts processes
	Time  int64           `json:"time,omitempty"`  // sets the clock, in nanoseconds since 1970: it stands still while a machine is paused
	// Now, with Count, is what the host's clock says, as in Time: one that is a second
	// behind is set to that, as they are where a hypervisor gets no CPU. None goes back.
	Now int64 `json:"now,omitempty"`
}

// A Reply answers an Order, when it is done.
type Reply struct {
	Kind      atoll.Kind `json:"kind,omitempty"` // "" and no Message means that it is done
	Message   string     `json:"message,omitempty"`
	Processes int        `json:"processes,omitempty"` // how many there are besides the kernel's and the guest's own
}

// Err is why the Order could not be done, nil if it was.
func (r Reply) Err(op, id string) error {
	if r.Kind == "" && r.Message == "" {
		return nil
	}
	return atoll.Errorf(op, id, r.Kind, "%s", r.Message)
}

// A Setup says what a Computer is to be.
type Setup struct {
	Config   Config `json:"config"`   // Env, Workdir and all else of its one sandbox
	Hostname string `json:"hostname"` // of up to 64 letters, digits and '-'

	// Time is that of the host, in nanoseconds since 1970, and Entropy what no other
	// machine knows, of 32 bytes or more: a machine that goes on from a snapshot has
	// neither of its own.
	Time    int64  `json:"time"`
	Entropy []byte `json:"entropy"`

	Processes int `json:"processes,omitzero"` // how many there may be; 0 is as many as there is room for

	Root    Root         `json:"root"`
	Mounts  []MachineDir `json:"mounts,omitempty"` // parents before what is below them
	Network *Interface   `json:"network,omitempty"`
	Bridges []Bridge     `json:"bridges,omitempty"`

	// Init is what it starts of its own: no such process counts as one of the sandbox.
	Init *vm.Init `json:"init,omitempty"`
}

// Root is the root file system of a Computer: Disk, which is read-only, below Upper, on
// which all changes are. Disks are named by their ids.
type Root struct {
	Disk  string `json:"disk"`            // a squashfs, an erofs or an ext4
	Upper string `json:"upper,omitempty"` // an ext4, made if it is empty; "" is memory
	Fixed bool   `json:"fixed,omitempty"` // nothing can be changed once the machine is set up; there is no Upper
}

// SharedFile is what a file is called in the directory by which it is shared.
const SharedFile = "file"

// A MachineDir is a directory of a Computer that is not its root file system's. One of
// Disk, Share and Size is given.
type MachineDir struct {
	Target   string      `json:"target"`
	Disk     string      `json:"disk,omitempty"`  // an ext4, made if it is empty
	Share    string      `json:"share,omitempty"` // the tag of a directory of the host
	File     bool        `json:"file,omitempty"`  // it is the file SharedFile in Share
	Bind     string      `json:"bind,omitempty"`  // another directory of the Computer, which is to be here, too
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
	MAC       string   `json:"mac,omitempty"` // of a card that the Computer makes: see vm.Caps.Frames; others have theirs
}

// A Bridge joins a port of a Computer, which its host can dial, to an address in it. The
// TCP port of that number is then not to be had otherwise.
type Bridge struct {
	Port    uint32 `json:"port"`
	Network string `json:"network"` // "tcp" or "unix"
	Address string `json:"address"`
}
