package atoll

import "time"

// An Image is one that a provider keeps.
type Image struct {
	Ref      string    `json:"ref"`                // its name in full, or its digest when it has none
	Provider string    `json:"provider"`           // that keeps it
	Digest   string    `json:"digest"`             // of what it consists of
	Platform string    `json:"platform,omitempty"` // "linux/amd64"
	Size     Bytes     `json:"size"`               // of its files
	InUse    bool      `json:"in_use"`             // a sandbox or a snapshot was made from it
	Fetched  time.Time `json:"fetched"`
	Used     time.Time `json:"used"` // when it was last asked for, or a sandbox started on it
}

// PruneOptions say which of the images that nobody uses PruneImages deletes.
// The zero value means those without a name, which another image has taken.
type PruneOptions struct {
	All       bool     `json:"all,omitempty"`       // those with a name, too
	Provider  string   `json:"provider,omitempty"`  // only those that it keeps
	UnusedFor Duration `json:"unused_for,omitzero"` // only those that were not used for so long
}

// Pruned says what PruneImages deleted.
type Pruned struct {
	Images []string `json:"images"` // digests, sorted
	Size   Bytes    `json:"size"`   // that there is room for now
}
