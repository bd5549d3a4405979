package atoll

import (
	"context"
	"net"
	"slices"
	"time"
)

// The optional interfaces. Call the helper of an interface instead of asserting it: the helper finds
// it behind layers with As, and handles values without it.

// A Resolver is a Provider that finds the id of a name without a List.
type Resolver interface {
	Resolve(ctx context.Context, project, name string) (id string, err error)
}

// A Combiner is a Provider that combines several named providers. Spec.Provider selects the one
// that creates a sandbox.
type Combiner interface {
	// Members describes the providers, the default one first. It returns recorded information and
	// calls no provider.
	Members(ctx context.Context) ([]Member, error)
}

// A Member describes one of the providers of a Combiner.
type Member struct {
	Info           // only the Name is set if the provider did not open
	InUse   bool   `json:"in_use"`            // the provider had sandboxes at the last check
	Problem string `json:"problem,omitempty"` // why the last check failed
}

// Members describes the providers that p combines, the default one first. If p is not a Combiner,
// Members describes p.
func Members(ctx context.Context, p Provider) ([]Member, error) {
	if c, ok := As[Combiner](p); ok {
		return c.Members(ctx)
	}
	return []Member{{Info: p.Info(), InUse: true}}, nil
}

// A Prober is a Provider that can check whether it works on this machine.
type Prober interface {
	Probe(ctx context.Context) Probe
}

// A Probe is the result of a check of a provider.
type Probe struct {
	OK     bool     `json:"ok"`               // the provider works
	Reason string   `json:"reason,omitempty"` // why the provider does not work
	Fix    string   `json:"fix,omitempty"`    // how to fix it, as a command if possible
	Notes  []string `json:"notes,omitempty"`  // limitations on this machine, with their reasons

	// Packages are the Debian packages that this machine lacks: those that Fix names, and those that a first
	// sandbox needs.
	Packages []string `json:"packages,omitempty"`
}

// ProbeProvider checks whether p works on this machine. It reports a Provider that is not a
// Prober as OK.
func ProbeProvider(ctx context.Context, p Provider) Probe {
	if pr, ok := As[Prober](p); ok {
		return pr.Probe(ctx)
	}
	return Probe{OK: true}
}

// A Preparer is a Provider that can do slow work, such as pulling an image, ahead of time.
type Preparer interface {
	// Prepare returns when Create with spec would not need to fetch anything. Without
	// Caps.ImageStore it may do nothing. progress may be nil; Prepare calls it from one goroutine
	// at a time.
	Prepare(ctx context.Context, spec *Spec, progress func(Progress)) error
}

// Progress is one report about a long operation.
type Progress struct {
	Phase string `json:"phase"`           // "pull", "unpack"
	Item  string `json:"item,omitempty"`  // such as the name of an image
	Done  int64  `json:"done,omitempty"`  // bytes
	Total int64  `json:"total,omitempty"` // in bytes; 0 if unknown
	Step  int    `json:"step,omitempty"`  // number of the step, from 1; 0 if there are none
	Steps int    `json:"steps,omitempty"` // number of steps
}

// Prepare fetches what Create with spec would need to fetch. It does nothing if p is not a
// Preparer.
func Prepare(ctx context.Context, p Provider, spec *Spec, progress func(Progress)) error {
	if pr, ok := As[Preparer](p); ok {
		return pr.Prepare(ctx, spec, progress)
	}
	return nil
}

// A ProjectRemover is a Provider that can remove a project with its sandboxes, volumes and
// machines.
type ProjectRemover interface {
	RemoveProject(ctx context.Context, project string) error
}

// RemoveProject removes everything that belongs to project. If p is not a ProjectRemover, it
// removes the sandboxes of the project with their data volumes.
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

// A Stock describes the sandboxes that a provider has booted ahead of need, with its counters since the start of the program.
type Stock struct {
	Spec    Spec // of the booted sandboxes; some may have other limits
	Max     int  // most of them; 0 means that the provider has no stock
	Want    int  // the number that the demand asks for
	Ready   int  // the number that have booted
	Booting int  // the number that boot at this moment

	Hits, Misses     int64  // creations that got a booted sandbox, and that found none
	Unmatched        int64  // creations that asked for another kind of sandbox
	Created, Removed int64  // sandboxes that have booted, and that were removed unused
	Problem          string // the error of the last boot; "" if it succeeded
}

// A ProjectLister is a Provider that has resources which all sandboxes of a project share, such
// as a machine or a disk.
type ProjectLister interface {
	// Projects lists the projects with such resources, sorted by name. It starts nothing.
	Projects(ctx context.Context) ([]Project, error)
}

// A Project describes the resources that a provider has for one project.
type Project struct {
	Name     string `json:"name"`     // as sandboxes name it
	Provider string `json:"provider"` // the provider that has the resources
	// Machine is the state of the project's machine, "" if there is none.
	Machine   State `json:"machine,omitempty"`
	Sandboxes int   `json:"sandboxes"` // in any state, including those of pools
	Disk      Bytes `json:"disk"`      // space that the project's disk uses on the provider's machine, which may be less than its maximum
}

// Projects lists the projects with resources that their sandboxes share, sorted by name. It
// returns none if p is not a ProjectLister.
func Projects(ctx context.Context, p Provider) ([]Project, error) {
	if l, ok := As[ProjectLister](p); ok {
		return l.Projects(ctx)
	}
	return nil, nil
}

// A VolumeStore is a Provider with Caps.Volumes. It stores data volumes of sandboxes and named
// volumes of projects. If the Provider is a Combiner, "NAME=VOLUME" denotes the volume of its
// member NAME.
type VolumeStore interface {
	// Volumes lists the volumes of a project, or of all projects if project is "".
	Volumes(ctx context.Context, project string) ([]Volume, error)
	// RemoveVolume deletes a volume. Kinds: ErrNotExist, ErrConflict (in use, or several members
	// have a volume of this name).
	RemoveVolume(ctx context.Context, project, name string) error
}

// A Volume is a directory that outlives sandboxes.
type Volume struct {
	Name     string    `json:"name"`              // "data-" and the id for a sandbox's data volume, CacheVolume for the project's cache
	Project  string    `json:"project"`           // the project that it belongs to
	Provider string    `json:"provider"`          // the provider that stores it
	Sandbox  string    `json:"sandbox,omitempty"` // the id of the sandbox, for a data volume
	Cache    bool      `json:"cache,omitempty"`   // the volume is the cache of its project
	InUse    bool      `json:"in_use"`            // a sandbox mounts it
	Created  time.Time `json:"created"`           // when it was created
}

// Volumes lists the volumes of a project, or of all projects if project is "".
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

// An Image describes an image in the image store of a provider.
type Image struct {
	Ref      string    `json:"ref"`                // the full name, or the digest of an image without a name
	Provider string    `json:"provider"`           // the provider that stores it
	Digest   string    `json:"digest"`             // of the image's content
	Platform string    `json:"platform,omitempty"` // "linux/amd64"
	Size     Bytes     `json:"size"`               // of its files
	InUse    bool      `json:"in_use"`             // a sandbox or a snapshot was created from it
	Fetched  time.Time `json:"fetched"`            // when it was pulled
	Used     time.Time `json:"used"`               // last request for it, or last start of a sandbox from it
}

// PruneOptions select which unused images PruneImages deletes. The zero value selects images
// without a name, such as those whose name moved to a newer image.
type PruneOptions struct {
	All       bool     `json:"all,omitempty"`       // also images with a name
	Provider  string   `json:"provider,omitempty"`  // only images of this provider
	UnusedFor Duration `json:"unused_for,omitzero"` // only images unused for at least this long
}

// Pruned lists what PruneImages deleted.
type Pruned struct {
	Images []string `json:"images"` // digests, sorted
	Size   Bytes    `json:"size"`   // the disk space freed
}

// An ImageStore is a Provider with Caps.ImageStore. It stores the images that Create and Prepare
// fetched. If the Provider is a Combiner, "NAME=REF" denotes the image of its member NAME.
type ImageStore interface {
	// Images lists the stored images, one entry for each of their names, sorted by name.
	Images(ctx context.Context) ([]Image, error)

	// RemoveImage removes the name ref from its image, and deletes the image if it has no other
	// name. If ref is a digest, RemoveImage deletes the image with all its names. RemoveImage
	// deletes an image from which a sandbox or a snapshot was created only with force; the
	// provider fetches it again when that sandbox starts. It never deletes an image that a
	// running sandbox uses. Kinds: ErrInvalid (not the name of an image), ErrNotExist,
	// ErrConflict (in use, or several members have it; nothing has changed then).
	RemoveImage(ctx context.Context, ref string, force bool) error

	// PruneImages deletes images from which no sandbox, running or stopped, and no snapshot was
	// created, together with other fetched data that nothing uses. It continues after a failure
	// and returns the first error. Kinds: ErrInvalid.
	PruneImages(ctx context.Context, opts PruneOptions) (Pruned, error)
}

// Images lists the images that p stores.
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

// PruneImages deletes unused images.
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

// An ImageResolver is a Provider with Caps.Images that can resolve the name of an image without
// fetching it.
type ImageResolver interface {
	ResolveImage(ctx context.Context, ref string) (digest string, err error)
}

// ResolveImage returns the digest of the image that Create would use now for the Spec.Image ref
// without fetching anything. Status.Image ends with the same digest. The result is "" for images
// without a digest, such as "host". Kinds: ErrUnsupported, ErrInvalid, ErrNotExist (the image is
// not stored).
func ResolveImage(ctx context.Context, p Provider, ref string) (digest string, err error) {
	if r, ok := As[ImageResolver](p); ok {
		return r.ResolveImage(ctx, ref)
	}
	return "", E("resolve image", ref, ErrUnsupported, nil)
}

// A SecretKeeper is a Provider that gives each sandbox a secret.
type SecretKeeper interface {
	Secret(ctx context.Context, id string) (string, error)
}

// SecretVar is the environment variable that holds the salted hash of the sandbox's secret, in
// every process of the sandbox. A Spec cannot set it.
const SecretVar = "ATOLL_SECRET"

// SecretOf returns the secret of the sandbox, which is for those that call a server inside. Programs in the sandbox know only its hash, and use
// it to authenticate clients; see package secret. No other call reveals the secret. A sandbox has
// the same secret after a stop and a start, and so has a new sandbox with the id and the data
// volume of a removed one. Kinds: ErrUnsupported, ErrNotFound, ErrNotExist (created without a
// secret).
func SecretOf(ctx context.Context, p Provider, id string) (string, error) {
	if k, ok := As[SecretKeeper](p); ok {
		return k.Secret(ctx, id)
	}
	return "", E("secret", id, ErrUnsupported, nil)
}

// A Reserver is a Provider that can reserve a warm sandbox, so that the caller knows its id
// before Create.
type Reserver interface {
	Reserve(ctx context.Context, spec *Spec) (id string, err error)
}

// Reserve reserves a warm sandbox that matches spec, which has no ID, and returns its id. Callers
// use it to record the id before they create the sandbox. Create with spec and this ID then
// returns the reserved sandbox at once.
//
// Reserve returns "" if no sandbox is warm, or if p is not a Reserver. The id belongs to the
// caller, and List does not include the sandbox before Create. If the caller does not create it
// within ReservationTTL, or the program that holds the reservation ends, the sandbox is removed;
// Create with the id then creates a new one. Kinds: those of Create with spec.
func Reserve(ctx context.Context, p Provider, spec *Spec) (id string, err error) {
	if r, ok := As[Reserver](p); ok {
		return r.Reserve(ctx, spec)
	}
	return "", nil
}

// ReservationTTL is the minimum lifetime of a reservation.
const ReservationTTL = time.Minute

// A SnapshotStore is a Provider with Caps.Snapshot. It stores snapshots, which outlive their
// sandboxes. Create starts a sandbox from the snapshot that Spec.Snapshot names, any number of
// times.
type SnapshotStore interface {
	Snapshots(ctx context.Context) ([]Snapshot, error)
	// RemoveSnapshot deletes a snapshot. Kinds: ErrNotExist.
	RemoveSnapshot(ctx context.Context, id string) error
}

// A Snapshot is a sandbox frozen at one moment, with its data volume if Work is set, and without
// other volumes. A sandbox restored from it has the files of that moment, and the processes with
// Command.Durable. All others end during the restore.
type Snapshot struct {
	ID       string    `json:"id"`       // with which a Spec names it
	Provider string    `json:"provider"` // the provider that stores it
	Sandbox  string    `json:"sandbox"`  // the id of the sandbox
	Spec     Spec      `json:"spec"`     // of the sandbox
	Version  string    `json:"version"`  // the backend version that can restore it
	Size     Bytes     `json:"size"`     // on disk
	Work     bool      `json:"work"`     // it has the files of the data volume, /work
	Created  time.Time `json:"created"`  // when it was taken
}

// Snapshots lists the snapshots that p stores.
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

// Files returns the file system of the sandbox. If sb is not a Filer, all methods of the result
// fail with ErrUnsupported.
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

// Dial connects to a TCP port in the sandbox, on loopback or any other address of the sandbox.
// The connection supports half-close (CloseWrite). ctx bounds only the dialing. Kinds:
// ErrUnsupported, ErrStopped, ErrInvalid, ErrUnavailable (nothing listens on the port).
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

// Pause freezes all processes of the sandbox until Resume: they use no CPU and do not respond.
// Pausing a paused sandbox does nothing. Kinds: ErrUnsupported, ErrStopped.
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

// Extend sets the expiry of the sandbox to ttl from now, whether that is sooner or later than
// before. With Never, the sandbox no longer expires. Extend changes Status.Expires, not Spec.TTL.
// Kinds: ErrUnsupported, ErrNotFound, ErrInvalid (ttl is not positive, or the sandbox has no
// expiry).
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
	Snapshot(ctx context.Context, opts ...SnapshotOption) (Snapshot, error)
}

// SnapshotOptions holds the settings of SnapshotOption values. Providers obtain it from
// ApplySnapshotOptions.
type SnapshotOptions struct {
	NoWork bool `json:"no_work,omitempty"` // without the files of the data volume, /work
}

// A SnapshotOption changes what TakeSnapshot does.
type SnapshotOption func(*SnapshotOptions)

// WithoutWork leaves the data volume out of a snapshot.
func WithoutWork() SnapshotOption { return func(o *SnapshotOptions) { o.NoWork = true } }

// ApplySnapshotOptions applies opts and returns the resulting settings.
func ApplySnapshotOptions(opts ...SnapshotOption) SnapshotOptions {
	var o SnapshotOptions
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// TakeSnapshot freezes the running sandbox and stores a copy of it. The copy includes the data
// volume if the provider can copy that, and unless opts say otherwise. Kinds: ErrUnsupported,
// ErrStopped, ErrExhausted.
func TakeSnapshot(ctx context.Context, sb Sandbox, opts ...SnapshotOption) (Snapshot, error) {
	if s, ok := As[Snapshotter](sb); ok {
		return s.Snapshot(ctx, opts...)
	}
	return Snapshot{}, E("snapshot", sb.ID(), ErrUnsupported, nil)
}

// A Meter is a Sandbox with Caps.Usage.
type Meter interface {
	Usage(ctx context.Context) (Usage, error)
}

// Usage is the current resource usage of a sandbox.
type Usage struct {
	Memory    Bytes    `json:"memory"`    // resident memory
	CPU       Duration `json:"cpu"`       // CPU time since the start
	Processes int      `json:"processes"` // number of running processes
}

// UsageOf measures the resource usage of the sandbox. Kinds: ErrUnsupported, ErrStopped.
func UsageOf(ctx context.Context, sb Sandbox) (Usage, error) {
	if m, ok := As[Meter](sb); ok {
		return m.Usage(ctx)
	}
	return Usage{}, E("usage", sb.ID(), ErrUnsupported, nil)
}

// A ProcessLister is a Sandbox that can list the processes that Exec started.
type ProcessLister interface {
	Processes(ctx context.Context) ([]ProcessStatus, error)
}

// Processes lists the processes that Exec started in the sandbox, running and ended, oldest
// first. For a stopped sandbox it lists those that Sandbox.Process still finds. Kinds:
// ErrUnsupported, ErrStopped (stopped, and Sandbox.Process finds none).
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

// Resize changes the size of the process's terminal. The process receives SIGWINCH. Kinds:
// ErrUnsupported, ErrInvalid (the process has no terminal), ErrStopped.
func Resize(ctx context.Context, p Process, size Size) error {
	if r, ok := As[Resizer](p); ok {
		return r.Resize(ctx, size)
	}
	return E("resize", p.ID(), ErrUnsupported, nil)
}

// A SubFS is an FS that can confine itself to a directory. The FS of a sandbox with Caps.Files
// implements it, and so does the result of Sub.
type SubFS interface {
	// Sub implements SubFiles for this FS.
	Sub(dir string) FS
}
