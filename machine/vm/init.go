package vm

// InitFile is the file of a root disk with an Init as JSON: what the guest does before it serves.
// Without the file it does nothing. Atoll's own guest gets its Init from its host, which has read
// the manifest of the bundle.
const InitFile = "/etc/atoll/init.json"

// An Init lists what the guest does before it serves, in this order.
type Init struct {
	Disks   []InitDisk    `json:"disks,omitempty"`
	Start   []InitProcess `json:"start,omitempty"`
	Bridges []InitBridge  `json:"bridges,omitempty"`
}

// An InitDisk is a disk of the machine for the guest to mount, found by its ID. The guest formats
// an empty disk first, and grows the file system to the size of the disk.
type InitDisk struct {
	ID     string `json:"id"`     // its virtio serial
	Format string `json:"format"` // "ext4"
	Label  string `json:"label"`
	Mount  string `json:"mount"`
}

// An InitProcess is a system program that runs with all rights. The guest restarts it when it ends.
// Its users have to find out themselves when it is ready.
type InitProcess struct {
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"`
}

// An InitBridge forwards each connection to a port of the guest, on vsock or its replacement, and
// on a TCP port that its host asks for, to a Unix socket in the guest.
type InitBridge struct {
	Port uint32 `json:"port"`
	Unix string `json:"unix"`
}
