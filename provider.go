package atoll

import (
	"context"
	"iter"
	"slices"
	"time"
)

// A Provider makes sandboxes. It may be a leaf (gVisor, Docker), a layer
// around another provider (a pool, tracing) or a client of a remote one; its
// user cannot tell. All methods may be called at once from many goroutines.
type Provider interface {
	// Info describes the provider. It never blocks and never changes.
	Info() Info

	// Create makes a sandbox and starts it, unless spec.NoStart: it is running,
	// and Exec works, when Create returns. It does not keep or change spec.
	// ctx bounds the call only. When Create fails, nothing is left behind.
	// Kinds: ErrInvalid, ErrAlreadyExists (id or name taken), ErrNotExist
	// (image, mount source, network, snapshot or workspace), ErrConflict (a host
	// port is taken), ErrUnsupported, ErrExhausted, ErrUnavailable, ErrExecFailed
	// (spec.Cmd).
	Create(ctx context.Context, spec *Spec) (Sandbox, error)

	// Get finds a sandbox by id, also one that was made before a restart.
	// Hyphenated ids are accepted. Kinds: ErrNotFound.
	Get(ctx context.Context, id string) (Sandbox, error)

	// List returns the sandboxes that this provider made and f matches, oldest
	// first. Of several providers, one that cannot be asked is left out, unless
	// f names it or no other answers; Members tells.
	List(ctx context.Context, f Filter) ([]Status, error)

	// Watch replays the current state of every sandbox as EventState, then
	// yields one EventSynced, then every change as it happens, in order for
	// each sandbox. It ends when the caller breaks off or with one last error:
	// ctx's when ctx ends, List's when there is no telling what there is,
	// ErrUnavailable when the reader was too slow to keep up, changes may have
	// been missed or the provider was closed. A slow reader never blocks the
	// provider.
	Watch(ctx context.Context) iter.Seq2[Event, error]

	// Close releases what this value holds. Sandboxes live on where the
	// provider can outlive its process. A second Close does nothing.
	Close() error
}

// Info describes a provider.
type Info struct {
	Name      string    `json:"name"`              // "gvisor", "docker", ...
	Isolation Isolation `json:"isolation"`         // what stands between a sandbox and its host
	Version   string    `json:"version,omitempty"` // of the backend
	Caps      Caps      `json:"caps"`
}

// Isolation names what stands between a sandbox and its host.
type Isolation string

// The classes of isolation, weakest first.
const (
	IsolationNone      Isolation = "none"      // a host process: development only
	IsolationContainer Isolation = "container" // namespaces and seccomp on the host's kernel
	IsolationKernel    Isolation = "kernel"    // an application kernel of its own (gVisor)
	IsolationVM        Isolation = "vm"        // a hypervisor
)

// Durability says what of a sandbox's root file system is there again when it
// starts after it stopped. Its work directory and volumes always are, where
// Caps.Volumes.
type Durability string

// The degrees of durability.
const (
	DurableNone  Durability = "none"  // nothing: it is as the image has it, if there is a start at all (Caps.Restart)
	DurableStop  Durability = "stop"  // a clean Stop and Start keeps files
	DurableCrash Durability = "crash" // the files of a killed sandbox survive too
)

// Caps says what a provider's sandboxes can do. It tells the truth: the
// conformance suite fails when a true one does not work or a false one does.
type Caps struct {
	Restart      bool       `json:"restart"`        // a stopped sandbox can start again; what it finds of its root file system Durable tells
	Durable      Durability `json:"durable"`        // "none" without Restart
	Survives     bool       `json:"survives"`       // sandboxes outlive the process that made them
	Reattach     bool       `json:"reattach"`       // after that, Process finds what Exec has started, and time limits hold
	ExitSignal   bool       `json:"exit_signal"`    // Exit.Signal
	IdleStop     bool       `json:"idle_stop"`      // Spec.IdleStop
	Extend       bool       `json:"extend"`         // Extender
	TTY          bool       `json:"tty"`            // Command.TTY
	Files        bool       `json:"files"`          // Filer, whose FS is a SubFS
	Dial         bool       `json:"dial"`           // Dialer
	Pause        bool       `json:"pause"`          // Pauser
	Snapshot     bool       `json:"snapshot"`       // Snapshotter, Spec.Snapshot
	Usage        bool       `json:"usage"`          // Meter
	Images       bool       `json:"images"`         // Spec.Image names an OCI image
	ImageStore   bool       `json:"image_store"`    // ImageStore: what was fetched can be listed, and removed
	Users        bool       `json:"users"`          // users other than the default one
	BindMounts   bool       `json:"bind_mounts"`    // Mount of type bind
	Volumes      bool       `json:"volumes"`        // data volumes and Mount of type volume
	Workspaces   bool       `json:"workspaces"`     // Spec.Workspace, WorkspaceStore
	Sessions     bool       `json:"sessions"`       // SessionStore
	Tmpfs        bool       `json:"tmpfs"`          // Mount of type tmpfs
	ReadOnlyRoot bool       `json:"read_only_root"` // Spec.ReadOnlyRoot
	MemoryLimit  bool       `json:"memory_limit"`   // Resources.Memory
	CPULimit     bool       `json:"cpu_limit"`      // Resources.CPUs
	ProcessLimit bool       `json:"process_limit"`  // Resources.Processes
	DiskLimit    bool       `json:"disk_limit"`     // Resources.Disk
	NetworkNone  bool       `json:"network_none"`   // no network is enforced, not just unset
	NetworkOn    bool       `json:"network_on"`
	Egress       bool       `json:"egress"`        // NetworkEgress
	NetworkNamed bool       `json:"network_named"` // networks of the backend's own
	Publish      bool       `json:"publish"`       // Port.Publish
	Cache        bool       `json:"cache"`         // Spec.Cache
	GPU          bool       `json:"gpu"`           // Resources.GPUs, where the machine has any
}

// State is where a sandbox is in its life:
//
//	creating → created → running ⇄ paused
//	running → stopped → running        (Stop, Start)
//	any → failed → running             (Start, from what survived)
//	any → removed                      (terminal)
type State string

// The states.
const (
	StateCreating State = "creating"
	StateCreated  State = "created" // made, never started
	StateRunning  State = "running"
	StatePaused   State = "paused"
	StateStopped  State = "stopped" // by Stop, or its main process exited 0, 137 or 143
	StateFailed   State = "failed"  // Reason says why
	StateRemoved  State = "removed" // only in events
)

// Status is what is known of a sandbox at one moment. It is pure data.
type Status struct {
	ID       string    `json:"id"`
	Provider string    `json:"provider"`
	Spec     Spec      `json:"spec"` // as asked for, defaults filled in
	State    State     `json:"state"`
	Reason   string    `json:"reason,omitempty"`  // one sentence: why it failed or stopped
	Exit     *Exit     `json:"exit,omitempty"`    // of the main process
	Ready    bool      `json:"ready"`             // running and answering
	Address  string    `json:"address,omitempty"` // base URL of what listens on AgentPort, where that is published: "http://127.0.0.1:49153"
	Image    string    `json:"image,omitempty"`   // the image in use, by its digest unless it came from a path
	Created  time.Time `json:"created"`
	Started  time.Time `json:"started,omitzero"`
	Stopped  time.Time `json:"stopped,omitzero"`
	Expires  time.Time `json:"expires,omitzero"` // when Spec.TTL, or what it was extended to, ends
	Caps     Caps      `json:"caps"`             // of this sandbox; a router mixes providers

	// Ports are those that are published now, by number; none of a sandbox that
	// does not run.
	Ports []PublishedPort `json:"ports,omitempty"`
}

// A Filter selects sandboxes; its zero value selects all. All fields that are
// set must match.
type Filter struct {
	Name     string            `json:"name,omitempty"`
	Project  string            `json:"project,omitempty"`
	Provider string            `json:"provider,omitempty"` // as in Status; of several, no other is asked
	Labels   map[string]string `json:"labels,omitempty"`   // each key with this value
	States   []State           `json:"states,omitempty"`   // any of these
}

// Match reports whether f selects st.
func (f Filter) Match(st Status) bool {
	if f.Name != "" && f.Name != st.Spec.Name || f.Project != "" && f.Project != st.Spec.Project || f.Provider != "" && f.Provider != st.Provider {
		return false
	}
	for k, v := range f.Labels {
		if have, ok := st.Spec.Labels[k]; !ok || have != v {
			return false
		}
	}
	return len(f.States) == 0 || slices.Contains(f.States, st.State)
}

// An Event is one step of a Watch.
type Event struct {
	Type   EventType `json:"type"`
	Status Status    `json:"status,omitzero"` // for EventState
	Time   time.Time `json:"time"`
}

// EventType says what an Event is about.
type EventType string

// The types of event.
const (
	EventState  EventType = "state"  // Status is the sandbox's new state
	EventSynced EventType = "synced" // the replay of current states is complete
)

// Clone returns a copy of st that shares nothing with it.
func (st Status) Clone() Status {
	st.Spec = *st.Spec.Clone()
	st.Ports = slices.Clone(st.Ports)
	if st.Exit != nil {
		exit := *st.Exit
		st.Exit = &exit
	}
	return st
}

// Resolve finds a sandbox by id or by its name in a project ("" means
// DefaultProject, or the first of its own to an account that may not use that). Ids win over names. A name that is an id is found by all forms of
// that. Kinds: ErrNotFound.
func Resolve(ctx context.Context, p Provider, project, ref string) (Sandbox, error) {
	id, err := NormalizeID(ref)
	if err != nil || id == "" {
		return named(ctx, p, project, ref)
	}
	sb, err := p.Get(ctx, id)
	if KindOf(err) == ErrNotFound && id != ref {
		sb, err = named(ctx, p, project, id)
	}
	if KindOf(err) == ErrNotFound {
		sb, err = named(ctx, p, project, ref)
	}
	return sb, err
}

// ResolveID returns the id of the sandbox that Resolve finds.
func ResolveID(ctx context.Context, p Provider, project, ref string) (string, error) {
	sb, err := Resolve(ctx, p, project, ref)
	if err != nil {
		return "", err
	}
	return sb.ID(), nil
}

type projectKey struct{}

// WithDefaultProject returns a context in which Resolve looks for a name in project,
// instead of in DefaultProject, if its caller names no project.
func WithDefaultProject(ctx context.Context, project string) context.Context {
	return context.WithValue(ctx, projectKey{}, project)
}

// defaultProject returns the project of names in a context.
func defaultProject(ctx context.Context) string {
	if project, ok := ctx.Value(projectKey{}).(string); ok {
		return project
	}
	return DefaultProject
}

// named finds a sandbox by its name in a project.
func named(ctx context.Context, p Provider, project, ref string) (Sandbox, error) {
	if !ValidName(ref) {
		return nil, E("get", ref, ErrNotFound, nil)
	}
	if project == "" {
		project = defaultProject(ctx)
	}
	if r, ok := As[Resolver](p); ok {
		id, err := r.Resolve(ctx, project, ref)
		if err != nil {
			return nil, err
		}
		return p.Get(ctx, id)
	}
	all, err := p.List(ctx, Filter{Name: ref, Project: project})
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, E("get", ref, ErrNotFound, nil)
	}
	return p.Get(ctx, all[0].ID)
}
