package atoll

import (
	"context"
	"net"
	"slices"
	"time"
)

// The optional interfaces. Never assert one: call its helper below, which finds it behind layers
// with As and answers for values that lack it.

// A Resolver is a Provider that finds the id for a name without a List.
type Resolver interface {
	Resolve(ctx context.Context, project, name string) (id string, err error)
}

// A Combiner is a Provider made of several, each of which has a name and makes
// the sandboxes whose Spec names it.
type Combiner interface {
	// Members describes them, the default one first, by what is known: it asks
	// none of them.
	Members(ctx context.Context) ([]Member, error)
}

// A Member is one of the providers that a Provider is made of.
type Member struct {
	Info           // only its Name where it could not be opened
	InUse   bool   `json:"in_use"`            // it had sandboxes when it was last asked
	Problem string `json:"problem,omitempty"` // why it could not be asked, the last time it was
}

// Members describes the providers that p is made of, the default one first. A
// Provider that is no Combiner is the only one.
func Members(ctx context.Context, p Provider) ([]Member, error) {
	if c, ok := As[Combiner](p); ok {
		return c.Members(ctx)
	}
	return []Member{{Info: p.Info(), InUse: true}}, nil
}

// A Prober is a Provider that can say whether it works on this machine.
type Prober interface {
	Probe(ctx context.Context) Probe
}

// A Probe says whether a provider works here, and if not what to do.
type Probe struct {
	OK     bool     `json:"ok"`
	Reason string   `json:"reason,omitempty"` // why not
	Fix    string   `json:"fix,omitempty"`    // what to do, as a command where possible
	Notes  []string `json:"notes,omitempty"`  // what works less well than it could, and why
}

// ProbeProvider asks p. A Provider that is no Prober is OK.
func ProbeProvider(ctx context.Context, p Provider) Probe {
	if pr, ok := As[Prober](p); ok {
		return pr.Probe(ctx)
	}
	return Probe{OK: true}
}

// A Preparer is a Provider that can do slow work, such as pulling an image,
// before it is needed.
type Preparer interface {
	// Prepare returns when Create with spec would not have to fetch anything; where
	// there is no Caps.ImageStore it may do nothing.
	// progress may be nil; it is called from one goroutine at a time.
	Prepare(ctx context.Context, spec *Spec, progress func(Progress)) error
}

// Progress is one report on long work.
type Progress struct {
	Phase string `json:"phase"`           // "pull", "unpack"
	Item  string `json:"item,omitempty"`  // what it is about
	Done  int64  `json:"done,omitempty"`  // bytes
	Total int64  `json:"total,omitempty"` // bytes; 0 when not known
}

// Prepare does now what Create with spec would have to fetch. A Provider that
// is no Preparer has nothing to do.
func Prepare(ctx context.Context, p Provider, spec *Spec, progress func(Progress)) error {
	if pr, ok := As[Preparer](p); ok {
		return pr.Prepare(ctx, spec, progress)
	}
	return nil
}

// A ProjectRemover is a Provider that can remove a project with all that
// belongs to it: sandboxes, volumes, machines.
type ProjectRemover interface {
	RemoveProject(ctx context.Context, project string) error
}

// RemoveProject removes all that belongs to project. Where p is no
// ProjectRemover, that is its sandboxes with their data volumes.
func RemoveProject(ctx context.Context, p Provider, project string) error {
	if pr, ok := As[ProjectRemover](p); ok {
		return pr.RemoveProject(ctx, project)
	}
	all, err := p.List(ctx, Filter{Project: project})
	if err != nil {
		return err
	}
	for _, st := range all {
		sb, err := p.Get(ctx, st.ID)
		if err == nil {
			err = sb.Remove(ctx, RemoveVolumes())
		}
		if err != nil && KindOf(err) != ErrNotFound {
			return err
		}
	}
	return nil
}

// A ProjectLister is a Provider that keeps something for a whole project, which its
// sandboxes share: a machine, a disk.
type ProjectLister interface {
	// Projects lists the projects for which it keeps something, sorted by name.
	// Nothing is started for it.
	Projects(ctx context.Context) ([]Project, error)
}

// A Project is what a provider keeps for one.
type Project struct {
	Name     string `json:"name"`
	Provider string `json:"provider"` // that keeps it
	// Machine is the state of the project's machine, "" while there is none.
	Machine   State `json:"machine,omitempty"`
	Sandboxes int   `json:"sandboxes"` // in whatever state, those of pools included
	Disk      Bytes `json:"disk"`      // what its disk takes up where the provider is, not how large it may become
}

// Projects lists the projects for which p keeps something that their sandboxes share,
// sorted by name. Where p is no ProjectLister, there is none.
func Projects(ctx context.Context, p Provider) ([]Project, error) {
	if l, ok := As[ProjectLister](p); ok {
		return l.Projects(ctx)
	}
	return nil, nil
}

// A VolumeStore is a Provider with Caps.Volumes: it keeps data volumes of
// sandboxes and named volumes of projects. Where it is made of several
// providers, "NAME=VOLUME" is the volume that the one called NAME keeps.
type VolumeStore interface {
	// Volumes lists the volumes of a project, or of all when it is "".
	Volumes(ctx context.Context, project string) ([]Volume, error)
	// RemoveVolume deletes one. Kinds: ErrNotExist, ErrConflict (in use, or
	// several providers keep one of this name).
	RemoveVolume(ctx context.Context, project, name string) error
}

// A Volume is a directory that outlives sandboxes.
type Volume struct {
	Name     string    `json:"name"` // "data-" and the id for a sandbox's own, CacheVolume for the project's cache
	Project  string    `json:"project"`
	Provider string    `json:"provider"`          // that keeps it
	Sandbox  string    `json:"sandbox,omitempty"` // id of the sandbox whose data volume it is
	Cache    bool      `json:"cache,omitempty"`   // it is the cache of its project
	InUse    bool      `json:"in_use"`            // a sandbox mounts it
	Created  time.Time `json:"created"`
}

// Volumes lists the volumes of a project, or of all when it is "".
func Volumes(ctx context.Context, p Provider, project string) ([]Volume, error) {
	if v, ok := As[VolumeStore](p); ok {
		return v.Volumes(ctx, project)
	}
	return nil, E("volumes", p.Info().Name, ErrUnsupported, nil)
}

// RemoveVolume deletes a volume of a project.
func RemoveVolume(ctx context.Context, p Provider, project, name string) error {
	if v, ok := As[VolumeStore](p); ok {
		return v.RemoveVolume(ctx, project, name)
	}
	return E("remove volume", name, ErrUnsupported, nil)
}

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

// An ImageStore is a Provider with Caps.ImageStore: it keeps the images that Create
// and Prepare have fetched. Where it is made of several providers, "NAME=REF" is
// the image that the one called NAME keeps.
type ImageStore interface {
	// Images lists the images that are kept, one for each name that they have,
	// sorted by name.
	Images(ctx context.Context) ([]Image, error)

	// RemoveImage takes the name ref from its image, and deletes the image when
	// it has no other; a digest deletes the image with all its names. One that
	// a sandbox or a snapshot was made from is deleted with force only, and is
	// fetched again when that starts; one that a running sandbox uses is not
	// deleted even then. Kinds: ErrInvalid (not the name of an image),
	// ErrNotExist, ErrConflict (in use, or several providers keep it; then
	// nothing is changed).
	RemoveImage(ctx context.Context, ref string, force bool) error

	// PruneImages deletes images that no sandbox, running or not, and no
	// snapshot was made from, and what else was fetched and is of no use. It
	// goes on after a failure, and returns the first. Kinds: ErrInvalid.
	PruneImages(ctx context.Context, opts PruneOptions) (Pruned, error)
}

// Images lists the images that p keeps.
func Images(ctx context.Context, p Provider) ([]Image, error) {
	if s, ok := As[ImageStore](p); ok {
		return s.Images(ctx)
	}
	return nil, E("images", p.Info().Name, ErrUnsupported, nil)
}

// RemoveImage deletes an image, or one of its names.
func RemoveImage(ctx context.Context, p Provider, ref string, force bool) error {
	if s, ok := As[ImageStore](p); ok {
		return s.RemoveImage(ctx, ref, force)
	}
	return E("remove image", ref, ErrUnsupported, nil)
}

// PruneImages deletes images that nobody uses.
func PruneImages(ctx context.Context, p Provider, opts PruneOptions) (Pruned, error) {
	if opts.UnusedFor < 0 {
		return Pruned{}, Errorf("prune images", "", ErrInvalid, "unused for %s: must not be negative", opts.UnusedFor)
	}
	if opts.Provider != "" {
		members, err := Members(ctx, p)
		if err != nil {
			return Pruned{}, err
		}
		if !slices.ContainsFunc(members, func(m Member) bool { return m.Name == opts.Provider }) {
			return Pruned{}, Errorf("prune images", "", ErrInvalid, "provider %q not found", opts.Provider)
		}
	}
	if s, ok := As[ImageStore](p); ok {
		return s.PruneImages(ctx, opts)
	}
	return Pruned{}, E("prune images", p.Info().Name, ErrUnsupported, nil)
}

// An ImageResolver is a Provider with Caps.Images that can tell what a name
// stands for without fetching it.
type ImageResolver interface {
	ResolveImage(ctx context.Context, ref string) (digest string, err error)
}

// ResolveImage is the digest of the image that Create with ref as Spec.Image
// would use now, as Status.Image ends with it, if nothing had to be fetched; ""
// for images that have none, such as the host's. Kinds: ErrUnsupported,
// ErrInvalid, ErrNotExist (it is not kept here).
func ResolveImage(ctx context.Context, p Provider, ref string) (digest string, err error) {
	if r, ok := As[ImageResolver](p); ok {
		return r.ResolveImage(ctx, ref)
	}
	return "", E("resolve image", ref, ErrUnsupported, nil)
}

// A SecretKeeper is a Provider whose sandboxes have a secret each.
type SecretKeeper interface {
	Secret(ctx context.Context, id string) (string, error)
}

// SecretVar is the environment variable in which every process of a sandbox
// finds the salted hash of its secret. No Spec can set it.
const SecretVar = "ATOLL_SECRET"

// Secret returns the secret of the sandbox, by which programs inside know who
// may talk to them: they have its hash only; see package secret. It is nowhere
// else to be read. A sandbox keeps its secret through stops and restarts, and so
// does one that is made again with the id and the data volume of a removed one.
// Kinds: ErrUnsupported, ErrNotFound, ErrNotExist (it was made without one).
func Secret(ctx context.Context, p Provider, id string) (string, error) {
	if k, ok := As[SecretKeeper](p); ok {
		return k.Secret(ctx, id)
	}
	return "", E("secret", id, ErrUnsupported, nil)
}

// A Reserver is a Provider that may have sandboxes ready for who has to know an id
// before the sandbox is theirs.
type Reserver interface {
	Reserve(ctx context.Context, spec *Spec) (id string, err error)
}

// Reserve sets aside a sandbox that is ready for spec, which has no ID, for who
// writes down what it is going to make before it does. It returns the id for which
// Create, with spec and this ID, gives that sandbox at once; "" if none is ready,
// as where p is no Reserver. The id is the caller's alone from then on, and
// the sandbox is in no List before Create. What nobody has come for in
// ReserveTime, or before the program ends that keeps it ready, is removed: then
// Create makes one of that id. Kinds: those of Create with spec.
func Reserve(ctx context.Context, p Provider, spec *Spec) (id string, err error) {
	if r, ok := As[Reserver](p); ok {
		return r.Reserve(ctx, spec)
	}
	return "", nil
}

// ReserveTime is how long a sandbox is kept for who has reserved it, at least.
const ReserveTime = time.Minute

// A SnapshotStore is a Provider with Caps.Snapshot: it keeps snapshots, which
// outlive the sandbox they were taken of. Create starts from one when
// Spec.Snapshot names it, as often as wanted.
type SnapshotStore interface {
	Snapshots(ctx context.Context) ([]Snapshot, error)
	// RemoveSnapshot deletes one. Kinds: ErrNotExist.
	RemoveSnapshot(ctx context.Context, id string) error
}

// A Snapshot is a sandbox frozen at one moment, without its volumes. Its files
// are as they were; processes that Exec started, and what they started, end
// when it is restored where the backend cannot connect them anew (gVisor).
type Snapshot struct {
	ID       string    `json:"id"`
	Provider string    `json:"provider"` // that keeps it
	Sandbox  string    `json:"sandbox"`  // id of the sandbox it was taken of
	Spec     Spec      `json:"spec"`     // of that sandbox
	Version  string    `json:"version"`  // of the backend that can restore it
	Size     Bytes     `json:"size"`     // on disk
	Created  time.Time `json:"created"`
}

// Snapshots lists the snapshots that p keeps.
func Snapshots(ctx context.Context, p Provider) ([]Snapshot, error) {
	if s, ok := As[SnapshotStore](p); ok {
		return s.Snapshots(ctx)
	}
	return nil, E("snapshots", p.Info().Name, ErrUnsupported, nil)
}

// RemoveSnapshot deletes a snapshot.
func RemoveSnapshot(ctx context.Context, p Provider, id string) error {
	if s, ok := As[SnapshotStore](p); ok {
		return s.RemoveSnapshot(ctx, id)
	}
	return E("remove snapshot", id, ErrUnsupported, nil)
}

// A Filer is a Sandbox with Caps.Files.
type Filer interface {
	Files() FS
}

// Files returns the sandbox's file system. That of a Sandbox which is no Filer
// answers every call with ErrUnsupported.
func Files(sb Sandbox) FS {
	if f, ok := As[Filer](sb); ok {
		return f.Files()
	}
	return noFS{sb.ID()}
}

// A Dialer is a Sandbox with Caps.Dial.
type Dialer interface {
	Dial(ctx context.Context, port int) (net.Conn, error)
}

// Dial connects to a TCP port that a process inside listens on, on loopback or
// any other address. The connection supports half-close (CloseWrite). ctx
// bounds the dialling only. Kinds: ErrUnsupported, ErrStopped, ErrInvalid,
// ErrUnavailable (nobody listens there).
func Dial(ctx context.Context, sb Sandbox, port int) (net.Conn, error) {
	if d, ok := As[Dialer](sb); ok {
		return d.Dial(ctx, port)
	}
	return nil, E("dial", sb.ID(), ErrUnsupported, nil)
}

// A Pauser is a Sandbox with Caps.Pause.
type Pauser interface {
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// Pause freezes every process: they use no CPU and answer nothing until
// Resume. Pausing a paused sandbox does nothing. Kinds: ErrUnsupported,
// ErrStopped.
func Pause(ctx context.Context, sb Sandbox) error {
	if p, ok := As[Pauser](sb); ok {
		return p.Pause(ctx)
	}
	return E("pause", sb.ID(), ErrUnsupported, nil)
}

// Resume undoes Pause. Resuming a running sandbox does nothing. Kinds:
// ErrUnsupported, ErrStopped.
func Resume(ctx context.Context, sb Sandbox) error {
	if p, ok := As[Pauser](sb); ok {
		return p.Resume(ctx)
	}
	return E("resume", sb.ID(), ErrUnsupported, nil)
}

// An Extender is a Sandbox with Caps.Extend.
type Extender interface {
	Extend(ctx context.Context, ttl Duration) error
}

// Extend has the sandbox removed ttl from now, not when its time would have been
// over, sooner or later than that; with Never it is not removed any more. It
// changes Status.Expires, not Spec.TTL. Kinds: ErrUnsupported, ErrNotFound,
// ErrInvalid (ttl is not positive, or the sandbox's time is not limited).
func Extend(ctx context.Context, sb Sandbox, ttl Duration) error {
	if ttl <= 0 && ttl != Never {
		return Errorf("extend", sb.ID(), ErrInvalid, "%s: must be positive, or never", ttl)
	}
	if e, ok := As[Extender](sb); ok {
		return e.Extend(ctx, ttl)
	}
	return E("extend", sb.ID(), ErrUnsupported, nil)
}

// A Snapshotter is a Sandbox with Caps.Snapshot.
type Snapshotter interface {
	Snapshot(ctx context.Context) (Snapshot, error)
}

// TakeSnapshot freezes the running sandbox for a moment and keeps a copy of
// it; it then runs on. Kinds: ErrUnsupported, ErrStopped, ErrExhausted.
func TakeSnapshot(ctx context.Context, sb Sandbox) (Snapshot, error) {
	if s, ok := As[Snapshotter](sb); ok {
		return s.Snapshot(ctx)
	}
	return Snapshot{}, E("snapshot", sb.ID(), ErrUnsupported, nil)
}

// A Meter is a Sandbox with Caps.Usage.
type Meter interface {
	Usage(ctx context.Context) (Usage, error)
}

// Usage is what a sandbox uses now.
type Usage struct {
	Memory    Bytes    `json:"memory"`    // resident
	CPU       Duration `json:"cpu"`       // CPU time since it started
	Processes int      `json:"processes"` // running inside
}

// UsageOf measures what the sandbox uses. Kinds: ErrUnsupported, ErrStopped.
func UsageOf(ctx context.Context, sb Sandbox) (Usage, error) {
	if m, ok := As[Meter](sb); ok {
		return m.Usage(ctx)
	}
	return Usage{}, E("usage", sb.ID(), ErrUnsupported, nil)
}

// A ProcessLister is a Sandbox that can list what Exec started.
type ProcessLister interface {
	Processes(ctx context.Context) ([]ProcessStatus, error)
}

// Processes lists the processes that Exec started in the sandbox, running and
// ended, oldest first; of one that has stopped, those that Sandbox.Process still
// finds. Kinds: ErrUnsupported, ErrStopped (there are none of those either).
func Processes(ctx context.Context, sb Sandbox) ([]ProcessStatus, error) {
	if l, ok := As[ProcessLister](sb); ok {
		return l.Processes(ctx)
	}
	return nil, E("processes", sb.ID(), ErrUnsupported, nil)
}

// A Resizer is a Process that may have a terminal (Caps.TTY).
type Resizer interface {
	Resize(ctx context.Context, size Size) error
}

// Resize changes the size of the process's terminal; the process is told by
// SIGWINCH. Kinds: ErrUnsupported, ErrInvalid (it has no terminal), ErrStopped.
func Resize(ctx context.Context, p Process, size Size) error {
	if r, ok := As[Resizer](p); ok {
		return r.Resize(ctx, size)
	}
	return E("resize", p.ID(), ErrUnsupported, nil)
}

// A SubFS is an FS that can confine itself to a directory. The FS of a sandbox
// with Caps.Files is one, and so is what its Sub returns.
type SubFS interface {
	// Sub is SubFiles of this FS.
	Sub(dir string) FS
}
