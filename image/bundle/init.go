package bundle

import "github.com/seed46cd37a8/atoll"

// InitFile is where a root disk says what the guest is to do before it serves: an
// Init as JSON. A disk without the file wants nothing done.
const InitFile = "/etc/atoll/init.json"

// An Init is what the guest does, in this order, before it serves.
type Init struct {
	Disks   []InitDisk    `json:"disks,omitempty"`
	Start   []InitProcess `json:"start,omitempty"`
	Bridges []InitBridge  `json:"bridges,omitempty"`
}

// An InitDisk is a disk of the machine that is mounted: the one with that ID, and
// formatted first if blkid finds nothing on it.
type InitDisk struct {
	ID     string `json:"id"`     // its virtio serial
	Format string `json:"format"` // "ext4"
	Label  string `json:"label"`
	Mount  string `json:"mount"`
}

// An InitProcess is a program that goes on. The next one is started when Ready, run
// once every Every, has ended with 0; it is a failure if that takes more than Within.
type InitProcess struct {
	Args   []string       `json:"args"`
	Env    []string       `json:"env,omitempty"`
	Ready  []string       `json:"ready,omitempty"`
	Every  atoll.Duration `json:"every,omitzero"`
	Within atoll.Duration `json:"within,omitzero"`
}

// An InitBridge joins each connection to a port of the guest, on vsock or what stands
// for it, to a Unix socket in it.
type InitBridge struct {
	Port uint32 `json:"port"`
	Unix string `json:"unix"`
}
