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
		TTL atoll.Duration `json:"ttl"` // from now on
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
		Server string `json:"server_version,omitempty"` // the version of the server
	}
	// An IDReply has the id of a sandbox or a process.
	IDReply struct {
		ID string `json:"id"` // of the sandbox or the process
	}
	// A SecretReply has the secret of a sandbox.
	SecretReply struct {
		Secret string `json:"secret"` // the same for the whole life of the sandbox
	}
	// A DigestReply has the digest of an image, or "" for an image without one.
	DigestReply struct {
		Digest string `json:"digest"` // of the image
	}
	// A WorkspaceEvent is the data of an event of adding or updating a workspace.
	WorkspaceEvent struct {
		Progress  *atoll.Progress      `json:"progress,omitempty"`  // progress of a clone
		Workspace *workspace.Workspace `json:"workspace,omitempty"` // set in the event "done"
	}
)

// A ProcessEventType is the type of a ProcessEvent, and the name of its server-sent event.
type ProcessEventType string

// The types of events of a process.
const (
	EventStarted ProcessEventType = "started" // the first event of a new process
	EventStdout  ProcessEventType = "stdout"
	EventStderr  ProcessEventType = "stderr"
	EventGap     ProcessEventType = "gap"  // output was dropped
	EventExit    ProcessEventType = "exit" // the last event
)

// A ProcessEvent is a server-sent event of a process.
type ProcessEvent struct {
	Type   ProcessEventType `json:"type"`             // also the name of the event
	ID     string           `json:"id,omitempty"`     // of the process; only in started
	Offset *int64           `json:"offset,omitempty"` // number of the first byte of the output; only in stdout and stderr
	Text   string           `json:"text,omitempty"`   // output that is UTF-8
	Base64 []byte           `json:"base64,omitempty"` // output that is not UTF-8
	Stream atoll.Stream     `json:"stream,omitempty"` // the stream with a gap
	Gap    *Gap             `json:"gap,omitempty"`    // the bytes that were dropped
	Exit   *atoll.Exit      `json:"exit,omitempty"`   // how the process ended
}

// Lists in responses. A server sends [] for an empty list.
type (
	// An AuditReply lists audit events.
	AuditReply struct {
		Events []store.AuditEvent `json:"events"` // newest first
	}
	// A FilesReply lists files.
	FilesReply struct {
		Files []FileInfo `json:"files"` // in the order of their paths
	}
	// An ImagesReply lists images.
	ImagesReply struct {
		Images []atoll.Image `json:"images"` // of all providers
	}
	// A KeysReply lists API keys.
	KeysReply struct {
		Keys []auth.Key `json:"keys"` // oldest first
	}
	// A ProcessesReply lists the processes of a sandbox.
	ProcessesReply struct {
		Processes []atoll.ProcessStatus `json:"processes"` // oldest first
	}
	// A ProjectsReply lists projects.
	ProjectsReply struct {
		Projects []atoll.Project `json:"projects"` // in the order of their names
	}
	// A ProvidersReply lists the providers of a server.
	ProvidersReply struct {
		Providers []atoll.Member `json:"providers"` // the default provider first
	}
	// A SandboxesReply lists sandboxes.
	SandboxesReply struct {
		Sandboxes []atoll.Status `json:"sandboxes"` // oldest first
	}
	// A SessionsReply lists sessions.
	SessionsReply struct {
		Sessions []session.Session `json:"sessions"` // oldest first
	}
	// A SnapshotsReply lists snapshots.
	SnapshotsReply struct {
		Snapshots []atoll.Snapshot `json:"snapshots"` // oldest first
	}
	// A VolumesReply lists volumes.
	VolumesReply struct {
		Volumes []atoll.Volume `json:"volumes"` // in the order of their names
	}
	// A WorkspacesReply lists workspaces.
	WorkspacesReply struct {
		Workspaces []workspace.Workspace `json:"workspaces"` // in the order of their names
	}
)
