package vm

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// MetadataTag names the read-only share on which a machine finds its Metadata as MetadataName.
// Atoll's own guest mounts it at MetadataDir.
const (
	MetadataTag  = "atoll-meta"
	MetadataName = "metadata.json"
	MetadataDir  = "/run/atoll/metadata"
	// WorkspaceOrigin is the directory at which the machine finds the workspace.
	WorkspaceOrigin = "/.workspace.origin"
)

// Metadata tells the programs in a machine its purpose.
type Metadata struct {
	SessionID string             `json:"session_id"`
	Secret    string             `json:"secret,omitempty"` // "salt:hash": see package secret
	Workspace *MetadataWorkspace `json:"workspace,omitempty"`
	Agent     *MetadataAgent     `json:"agent,omitempty"`
}

// MetadataWorkspace describes the workspace of the machine.
type MetadataWorkspace struct {
	Path       string `json:"path"` // or the URL of a repository
	Commit     string `json:"commit,omitempty"`
	MountPoint string `json:"mount_point"`
}

// MetadataAgent is a program that the guest runs. The guest forwards the port of the machine with
// the number Port to the agent's TCP port of the same number.
type MetadataAgent struct {
	Command string        `json:"command,omitempty"`
	Args    []string      `json:"args"`
	Port    int           `json:"port,omitempty"`
	Vsock   MetadataVsock `json:"vsock,omitzero"` // for readers that expect the port here
}

// MetadataVsock is a port of the machine.
type MetadataVsock struct {
	Port int `json:"port"`
}

// Write writes m into dir, the directory to share, readable by all.
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
