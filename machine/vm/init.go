package vm

// InitFile is where a root disk says what the guest is to do before it serves: an
// Init as JSON. A disk without the file wants nothing done. A guest of ours is told by
// its host, which has read the manifest of the bundle.
const InitFile = "/etc/atoll/init.json"

// An Init is what the guest does, in this order, before it serves.
type Init struct {
	Disks   []InitDisk    `json:"disks,omitempty"`
	Start   []InitProcess `json:"start,omitempty"`
	Bridges []InitBridge  `json:"bridges,omitempty"`
}

// An InitDisk is a disk of the machine that is mounted: the one with that ID. It is
// formatted first if there is nothing on it, and its file system is made as large as it is.
type InitDisk struct {
	ID     string `json:"id"`     // its virtio serial
	Format string `json:"format"` // "ext4"
	Label  string `json:"label"`
	Mount  string `json:"mount"`
}

// An InitProcess is a program of the system's own, with all rights, that goes on: when
// it ends, it is started again. Whoever needs it finds out when it is ready.
type InitProcess struct {
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"`
}

// An InitBridge joins each connection to a port of the guest, on vsock or what stands
// for it, and as a TCP port that its host asks for, to a Unix socket in it.
type InitBridge struct {
	Port uint32 `json:"port"`
	Unix string `json:"unix"`
}
