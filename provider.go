package atoll

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Provider creates sandboxes. It may be a leaf (gVisor, Docker), a layer around another
// provider (a pool, tracing), or a client of a remote provider; its users need not know which.
// All methods are safe for concurrent use.
type Provider interface {
	// Info describes the provider. It does not block, and its result never changes.
	Info() Info

	// Create creates a sandbox. Unless spec.NoStart is set, Create starts it: the sandbox is
	// running, and Exec works, when Create returns. Create neither retains nor changes spec. ctx
	// bounds only the call. A failed Create leaves nothing behind. Kinds: ErrInvalid,
	// ErrAlreadyExists (id or name taken), ErrNotExist (image, mount source, network, snapshot or
	// workspace), ErrConflict (host port taken), ErrUnsupported, ErrExhausted, ErrUnavailable,
	// ErrExecFailed (spec.Cmd).
	Create(ctx context.Context, spec *Spec) (Sandbox, error)

	// Get finds a sandbox by its id, with or without hyphens, even if it was created before a
	// restart of this program. Kinds: ErrNotFound.
	Get(ctx context.Context, id string) (Sandbox, error)

	// List returns the sandboxes of this provider that match f, oldest first. A Combiner omits
	// members that it cannot reach, unless f names the member or all members are unreachable;
	// Members reports them.
	List(ctx context.Context, f Filter) ([]Status, error)

	// Watch replays the current state of every sandbox as EventState, then yields one
	// EventSynced, then yields every change as it happens, in order for each sandbox. A slow
	// reader never blocks the provider. The sequence ends when the caller breaks out of the loop,
	// or with one error: that of ctx when ctx ends, that of List if listing fails, or
	// ErrUnavailable if the reader was too slow, if changes may be missing, or if the provider
	// was closed.
	Watch(ctx context.Context) iter.Seq2[Event, error]

	// Close releases the resources of this value. Sandboxes survive if the provider has
	// Caps.Survives. A second Close does nothing.
	Close() error
}

// Info describes a provider.
type Info struct {
	Name      string    `json:"name"`              // "gvisor", "docker", ...
	Isolation Isolation `json:"isolation"`         // the boundary between a sandbox and its host
	Version   string    `json:"version,omitempty"` // of the backend
	Caps      Caps      `json:"caps"`              // what its sandboxes can do
}

// Isolation is the kind of boundary between a sandbox and its host.
type Isolation string

// The kinds of isolation, weakest first.
const (
	IsolationNone      Isolation = "none"      // a process of the host; for development only
	IsolationProfile   Isolation = "profile"   // a process of the host, with its paths, behind a profile of the host's kernel
	IsolationContainer Isolation = "container" // namespaces and seccomp on the host's kernel
	IsolationKernel    Isolation = "kernel"    // an application kernel of its own (gVisor)
	IsolationVM        Isolation = "vm"        // a hypervisor
)

// Durability is the lifetime of files in a sandbox's root file system. The work directory and
// volumes survive every stop if the provider has Caps.Volumes.
type Durability string

// The degrees of durability.
const (
	DurableNone  Durability = "none"  // a start begins with the files of the image, if a second start is possible at all (Caps.Restart)
	DurableStop  Durability = "stop"  // files survive a clean Stop and Start
	DurableCrash Durability = "crash" // files also survive a kill of the sandbox
)

// Caps lists what the sandboxes of a provider can do. The conformance suite fails if a true field
// does not work, or if a false one does.
type Caps struct {
	Restart       bool       `json:"restart"`        // a stopped sandbox can start again; Durable describes the files it then has
	Durable       Durability `json:"durable"`        // "none" without Restart
	Survives      bool       `json:"survives"`       // sandboxes outlive the process that created them
	Reattach      bool       `json:"reattach"`       // after that, Process finds earlier processes of Exec, and time limits still apply
	ExitSignal    bool       `json:"exit_signal"`    // Exit.Signal
	IdleStop      bool       `json:"idle_stop"`      // Spec.IdleStop
	Extend        bool       `json:"extend"`         // Extender
	TTY           bool       `json:"tty"`            // Command.TTY
	Files         bool       `json:"files"`          // Filer, whose FS is a SubFS and an Editor
	Dial          bool       `json:"dial"`           // Dialer
	Pause         bool       `json:"pause"`          // Pauser
	Snapshot      bool       `json:"snapshot"`       // Snapshotter, Spec.Snapshot
	DurableExec   bool       `json:"durable_exec"`   // Command.Durable
	Usage         bool       `json:"usage"`          // Meter
	Images        bool       `json:"images"`         // Spec.Image names an OCI image
	ImageStore    bool       `json:"image_store"`    // ImageStore: fetched images can be listed and removed
	Users         bool       `json:"users"`          // users other than the default one
	BindMounts    bool       `json:"bind_mounts"`    // Mount of type bind
	Volumes       bool       `json:"volumes"`        // data volumes and Mount of type volume
	VolumeLocks   bool       `json:"volume_locks"`   // file locks on a volume exclude other sandboxes that mount it
	Workspaces    bool       `json:"workspaces"`     // Spec.Workspace; see package layer/workspace
	Sessions      bool       `json:"sessions"`       // sessions; see package layer/session
	Tmpfs         bool       `json:"tmpfs"`          // Mount of type tmpfs
	ReadOnlyRoot  bool       `json:"read_only_root"` // Spec.ReadOnlyRoot
	MemoryLimit   bool       `json:"memory_limit"`   // Resources.Memory
	CPULimit      bool       `json:"cpu_limit"`      // Resources.CPUs
	ProcessLimit  bool       `json:"process_limit"`  // Resources.Processes
	DiskLimit     bool       `json:"disk_limit"`     // Resources.Disk
	DiskWatch     bool       `json:"disk_watch"`     // Resources.Disk without DiskLimit: programs that write more are ended
	NetworkNone   bool       `json:"network_none"`   // the provider enforces the absence of a network
	NetworkOn     bool       `json:"network_on"`     // a network without restrictions
	Egress        bool       `json:"egress"`         // NetworkEgress
	NetworkNamed  bool       `json:"network_named"`  // networks of the backend
	Gateway       bool       `json:"gateway"`        // Network.Deny, Network.Rules, Spec.Secrets, and entries of Network.Allow with ports, methods and paths
	Refusals      bool       `json:"refusals"`       // Refuser
	NetworkLog    bool       `json:"network_log"`    // NetworkLogger
	NetworkUpdate bool       `json:"network_update"` // NetworkUpdater
	Publish       bool       `json:"publish"`        // Port.Publish
	Cache         bool       `json:"cache"`          // Spec.Cache
	GPU           bool       `json:"gpu"`            // Resources.GPUs, if the machine has GPUs
}

// State is the state of a sandbox. The transitions are:
//
//	creating → created → running ⇄ paused
//	running → stopped → running        (Stop, Start)
//	any → failed → running             (Start, from the surviving files)
//	any → removed                      (terminal)
type State string

// The states of a sandbox.
const (
	StateCreating State = "creating"
	StateCreated  State = "created" // never started
	StateRunning  State = "running"
	StatePaused   State = "paused"
	StateStopped  State = "stopped" // by Stop, or because its main process exited with 0, 137 or 143
	StateFailed   State = "failed"  // see Status.Reason
	StateRemoved  State = "removed" // only in events
)

// Status describes a sandbox at one moment. It is pure data.
type Status struct {
	ID       string    `json:"id"`                // 32 hexadecimal digits
	Provider string    `json:"provider"`          // the provider that has it
	Spec     Spec      `json:"spec"`              // as requested, with defaults filled in
	State    State     `json:"state"`             // state at that moment
	Reason   string    `json:"reason,omitempty"`  // one sentence: why the sandbox failed or stopped
	Exit     *Exit     `json:"exit,omitempty"`    // of the main process
	Ready    bool      `json:"ready"`             // the sandbox runs and responds
	Address  string    `json:"address,omitempty"` // the published base URL of AgentPort: "http://127.0.0.1:49153"; empty if not published
	Image    string    `json:"image,omitempty"`   // the image in use, with its digest unless it came from a path
	Created  time.Time `json:"created"`           // when it was created
	Started  time.Time `json:"started,omitzero"`  // when it was last started
	Stopped  time.Time `json:"stopped,omitzero"`  // when it stopped
	Expires  time.Time `json:"expires,omitzero"`  // the end of Spec.TTL, or the expiry that Extend set
	Caps     Caps      `json:"caps"`              // of this sandbox; the members of a Combiner differ

	// Ports lists the published ports, sorted by number. It is empty unless the sandbox runs.
	Ports []PublishedPort `json:"ports,omitempty"`
}

// A Filter selects sandboxes that match all of its non-zero fields. The zero Filter selects all
// sandboxes.
type Filter struct {
	Name     string            `json:"name,omitempty"`
	Project  string            `json:"project,omitempty"`
	Provider string            `json:"provider,omitempty"` // as in Status; a Combiner calls only this member
	Labels   map[string]string `json:"labels,omitempty"`   // each key must have this value
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

// An Event is one element of Provider.Watch.
type Event struct {
	Type   EventType `json:"type"`            // kind of event
	Status Status    `json:"status,omitzero"` // for EventState
	Time   time.Time `json:"time"`            // when it happened
}

// EventType is the type of an Event.
type EventType string

// The types of events.
const (
	EventState  EventType = "state"  // Status is the new state of the sandbox
	EventSynced EventType = "synced" // the replay of current states is complete
)

// Clone returns a deep copy of st.
func (st Status) Clone() Status {
	st.Spec = *st.Spec.Clone()
	st.Ports = slices.Clone(st.Ports)
	if st.Exit != nil {
		exit := *st.Exit
		st.Exit = &exit
	}
	return st
}

// Resolve finds a sandbox by its id, or by its name in project. If project is "", Resolve uses
// the project of WithDefaultProject, or else DefaultProject. Ids take precedence over names. If a
// name has the form of an id, all spellings of that id find it. Kinds: ErrNotFound.
func Resolve(ctx context.Context, p Provider, project, ref string) (Sandbox, error) {
	id, err := NormalizeID(ref)
	if err != nil || id == "" {
		return findByName(ctx, p, project, ref)
	}
	sb, err := p.Get(ctx, id)
	if KindOf(err) == ErrNotFound && id != ref {
		sb, err = findByName(ctx, p, project, id)
	}
	if KindOf(err) == ErrNotFound {
		sb, err = findByName(ctx, p, project, ref)
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

// WithDefaultProject returns a context in which Resolve looks for names in project, instead of
// DefaultProject, if its caller passes no project.
func WithDefaultProject(ctx context.Context, project string) context.Context {
	return context.WithValue(ctx, projectKey{}, project)
}

// defaultProject returns the project in which Resolve looks for names by default.
func defaultProject(ctx context.Context) string {
	if project, ok := ctx.Value(projectKey{}).(string); ok {
		return project
	}
	return DefaultProject
}

// findByName finds a sandbox by its name in a project.
func findByName(ctx context.Context, p Provider, project, ref string) (Sandbox, error) {
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

// A ProviderLayer is the base of a layer, which embeds it and overrides the methods that it
// changes. ProviderLayer forwards all methods of Provider, and lets As find the optional
// abilities of the wrapped provider. Sandboxes that the layer returns should embed SandboxLayer.
type ProviderLayer struct{ Provider }

// Unwrap returns the wrapped provider.
func (l ProviderLayer) Unwrap() Provider { return l.Provider }

// A SandboxLayer is the base of a layer around a Sandbox; see ProviderLayer.
type SandboxLayer struct{ Sandbox }

// Unwrap returns the wrapped sandbox.
func (l SandboxLayer) Unwrap() Sandbox { return l.Sandbox }

// A ProcessLayer is the base of a layer around a Process; see ProviderLayer.
type ProcessLayer struct{ Process }

// Unwrap returns the wrapped process.
func (l ProcessLayer) Unwrap() Process { return l.Process }

// As finds the optional ability T of a Provider, Sandbox or Process. It returns the outermost
// value that implements T among x and the values that x wraps. A layer that must see the calls of
// an ability implements that ability. X is one of the three interfaces, not the type of an
// implementation.
func As[T, X any](x X) (T, bool) {
	for {
		if t, ok := any(x).(T); ok {
			return t, true
		}
		layer, ok := any(x).(interface{ Unwrap() X })
		if !ok {
			var none T
			return none, false
		}
		x = layer.Unwrap()
	}
}

// An Opener opens a provider, for Open. If this machine lacks what it needs, such as a running server, it
// returns an error of kind ErrUnsupported that says so.
type Opener func(ctx context.Context) (Provider, error)

// openers are the registered openers, guarded by openersMu.
var (
	openersMu sync.Mutex
	openers   []namedOpener
)

type namedOpener struct {
	name string
	rank int
	open Opener
}

// RegisterOpener adds an Opener to those of Open. Open tries a lower rank first. Packages call it when a
// program imports them: provider/auto has the ranks 10 and 20, provider/gvisor 30, provider/docker 40. It
// panics if the name is taken.
func RegisterOpener(name string, rank int, open Opener) {
	openersMu.Lock()
	defer openersMu.Unlock()
	if slices.ContainsFunc(openers, func(o namedOpener) bool { return o.name == name }) {
		panic("atoll: two openers are called " + name)
	}
	openers = append(openers, namedOpener{name, rank, open})
	slices.SortStableFunc(openers, func(a, b namedOpener) int { return cmp.Compare(a.rank, b.rank) })
}

// ProbedOpener returns an Opener for a provider that may not work on this machine: it closes the provider that
// open returns unless ProbeProvider reports it as OK.
func ProbedOpener(open Opener) Opener {
	return func(ctx context.Context) (Provider, error) {
		p, err := open(ctx)
		if err != nil {
			return nil, err
		}
		probe := ProbeProvider(ctx, p)
		if probe.OK {
			return p, nil
		}
		if err := errors.Join(ctx.Err(), p.Close()); err != nil {
			return nil, err
		}
		return nil, Errorf("open", "", ErrUnsupported, "%s (%s)", probe.Reason, probe.Fix)
	}
}

// Open returns the first provider that a package which the program imports can open. With provider/auto these
// are a running server of atoll serve, and else the program atoll in PATH; the packages of providers add
// themselves. The caller must close the provider. Kinds: ErrUnsupported (nothing can be opened here; the
// error says why for each package), and those of the package that failed.
//
//	import _ "github.com/seed46cd37a8/atoll/provider/auto"
//
//	p, err := atoll.Open(ctx)
func Open(ctx context.Context) (Provider, error) {
	openersMu.Lock()
	all := slices.Clone(openers)
	openersMu.Unlock()
	if len(all) == 0 {
		return nil, Errorf("open", "", ErrUnsupported, "no provider is linked: import provider/auto or the package of a provider")
	}
	var reasons []string
	for _, o := range all {
		p, err := o.open(ctx)
		if err == nil {
			return p, nil
		}
		if KindOf(err) != ErrUnsupported {
			return nil, E("open", o.name, KindOf(err), err)
		}
		reasons = append(reasons, o.name+": "+err.Error())
	}
	return nil, Errorf("open", "", ErrUnsupported, "%s", strings.Join(reasons, "; "))
}
