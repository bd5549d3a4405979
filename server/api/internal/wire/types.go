package wire

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// The bodies of requests that have no type of their own in another package.
type (
	// A StopRequest stops a sandbox.
	StopRequest struct {
		// Grace is the time for processes to end; absent means the default.
		Grace *atoll.Duration `json:"grace,omitempty"`
	}
	// An ExtendRequest sets the time until the expiry, from now; "never" removes the expiry.
	ExtendRequest struct {
		TTL atoll.Duration `json:"ttl"`
	}
	// A SignalRequest sends a signal to a process.
	SignalRequest struct {
		Signal atoll.Signal `json:"signal"` // name or number
	}
	// A RotateRequest replaces the secret of an API key.
	RotateRequest struct {
		// Grace is the time for which the old secret stays valid; absent means an hour.
		Grace *atoll.Duration `json:"grace,omitempty"`
	}
)

// The bodies of responses that have no type of their own in another package.
type (
	// A ServerInfo is the provider's Info and the version of the server.
	ServerInfo struct {
		atoll.Info
		Server string `json:"server_version,omitempty"`
	}
	// An IDReply has the id of a sandbox or a process.
	IDReply struct {
		ID string `json:"id"`
	}
	// A SecretReply has the secret of a sandbox.
	SecretReply struct {
		Secret string `json:"secret"`
	}
	// A DigestReply has the digest of an image, or "" for an image without one.
	DigestReply struct {
		Digest string `json:"digest"`
	}
	// A WorkspaceEvent is the data of an event of adding or updating a workspace.
	WorkspaceEvent struct {
		Progress  *atoll.Progress      `json:"progress,omitempty"`
		Workspace *workspace.Workspace `json:"workspace,omitempty"` // set in the event "done"
	}
)

// Lists in responses. A server sends [] for an empty list.
type (
	// An AuditReply lists audit events.
	AuditReply struct {
		Events []store.AuditEvent `json:"events"`
	}
	// A FilesReply lists files.
	FilesReply struct {
		Files []FileInfo `json:"files"`
	}
	// An ImagesReply lists images.
	ImagesReply struct {
		Images []atoll.Image `json:"images"`
	}
	// A KeysReply lists API keys.
	KeysReply struct {
		Keys []auth.Key `json:"keys"`
	}
	// A ProcessesReply lists the processes of a sandbox.
	ProcessesReply struct {
		Processes []atoll.ProcessStatus `json:"processes"`
	}
	// A ProjectsReply lists projects.
	ProjectsReply struct {
		Projects []atoll.Project `json:"projects"`
	}
	// A ProvidersReply lists the providers of a server.
	ProvidersReply struct {
		Providers []atoll.Member `json:"providers"`
	}
	// A SandboxesReply lists sandboxes.
	SandboxesReply struct {
		Sandboxes []atoll.Status `json:"sandboxes"`
	}
	// A SessionsReply lists sessions.
	SessionsReply struct {
		Sessions []session.Session `json:"sessions"`
	}
	// A SnapshotsReply lists snapshots.
	SnapshotsReply struct {
		Snapshots []atoll.Snapshot `json:"snapshots"`
	}
	// A VolumesReply lists volumes.
	VolumesReply struct {
		Volumes []atoll.Volume `json:"volumes"`
	}
	// A WorkspacesReply lists workspaces.
	WorkspacesReply struct {
		Workspaces []workspace.Workspace `json:"workspaces"`
	}
)
