package vm

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// MetadataTag is that of the share, read-only, on which a machine finds its Metadata as
// MetadataName. A guest of ours mounts it at MetadataDir.
const (
	MetadataTag  = "atoll-meta"
	MetadataName = "metadata.json"
	MetadataDir  = "/run/atoll/metadata"
	// WorkspaceOrigin is where it finds the workspace.
	WorkspaceOrigin = "/.workspace.origin"
)

// Metadata tells who is in a machine what it is for.
type Metadata struct {
	SessionID string             `json:"session_id"`
	Secret    string             `json:"secret,omitempty"` // "salt:hash": see package secret
	Workspace *MetadataWorkspace `json:"workspace,omitempty"`
	Agent     *MetadataAgent     `json:"agent,omitempty"`
}

// MetadataWorkspace says what is worked on.
type MetadataWorkspace struct {
	Path       string `json:"path"` // or the URL of a repository
	Commit     string `json:"commit,omitempty"`
	MountPoint string `json:"mount_point"`
}

// MetadataAgent is a program that the guest runs, and the TCP port that it listens on,
// which the guest joins to a port of the machine with the same number.
type MetadataAgent struct {
	Command string        `json:"command,omitempty"`
	Args    []string      `json:"args"`
	Port    int           `json:"port,omitempty"`
	Vsock   MetadataVsock `json:"vsock,omitzero"` // what those read who were told so
}

// MetadataVsock is a port of the machine.
type MetadataVsock struct {
	Port int `json:"port"`
}

// Write writes m into dir, which is to be shared, for all to read.
func (m *Metadata) Write(dir string) error {
	copied := *m
	if a := m.Agent; a != nil {
		with := *a
		if with.Args == nil {
			with.Args = []string{}
		}
		with.Vsock.Port = with.Port
		copied.Agent = &with
	}
	text, err := json.MarshalIndent(&copied, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, MetadataName)
	if err := fsutil.WriteFile(path, append(text, '\n')); err != nil {
		return err
	}
	return os.Chmod(path, 0o444)
}
