//go:build linux

// Package gvisor provides sandboxes that run on gVisor, an application kernel
// written in Go, which is compiled in: there is nothing to install, and
// neither root, nor KVM, nor a daemon, nor an image is needed.
//
// The binary must be linked statically (CGO_ENABLED=0): it executes itself
// again as the keeper of each sandbox, as gVisor's sentry and as its gofer.
// Importing this package is all that this takes; such a process is taken over
// before main.
package gvisor

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/image"
	"github.com/seed46cd37a8/atoll/internal/disk"
	"github.com/seed46cd37a8/atoll/internal/kept/statedir"
	"github.com/seed46cd37a8/atoll/internal/volume"
	_ "github.com/seed46cd37a8/atoll/provider/gvisor/internal/runsc" // takes over gVisor's helper processes
)

// Options configure the provider. Dir is required; zero fields mean defaults.
type Options struct {
	// Dir keeps sandboxes, volumes, snapshots and images; it is made when
	// missing, and must be this user's alone. Many providers, in many processes,
	// may use one directory.
	Dir string
	// RunDir keeps what must not survive a reboot, and must be this user's
	// alone; it is made when missing. Default: below $XDG_RUNTIME_DIR, if that
	// is this user's, else /run for root, else /run/user/UID if there is one,
	// else the temporary directory.
	RunDir string
	// Helper is the static binary that is executed as keeper. Default: this
	// binary.
	Helper string
	// Platform is gVisor's: "systrap" (default) or "kvm".
	Platform string
	// Spare keeps one keeper process started ahead of the next Create, which then
	// need not wait for that: for servers, not for programs that make one sandbox.
	Spare bool
	// HostPaths are absolute paths of the host that the image "host" shows,
	// read-only, besides the system's programs and libraries.
	HostPaths []string
	// Image configures the image store.
	Image image.Options
	// Cgroup is what the names of the sandboxes' cgroups begin with. Default:
	// "atoll-", and what tells Dir from other directories: callers choose ids, and
	// may choose the same for sandboxes of several.
	Cgroup string
	// Debug makes gVisor write its own logs into the sandbox's directory.
	Debug bool
	// Log receives what the provider has to say. Default: nowhere.
	Log *slog.Logger

	step func(name string) error // asked before each step of making and starting a sandbox, and fails it: for tests
}

// A Provider makes gVisor sandboxes.
type Provider struct {
	opts   Options
	dir    statedir.Dir
	images *image.Store
	info   atoll.Info
	log    *slog.Logger
	events *events

	mu      sync.Mutex
	keepers map[string]*keeperClient // by sandbox id

	spare   *spare
	sweeper context.CancelFunc
	wake    chan struct{} // pokes the sweeper; capacity 1
	work    sync.WaitGroup
	closing sync.Once
}

// New opens the state directory. It does not check whether sandboxes work
// here: Probe does, and Create says so.
func New(opts Options) (*Provider, error) {
	if opts.Dir == "" {
		return nil, atoll.Errorf("gvisor", "", atoll.ErrInvalid, "no state directory given")
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, atoll.E("gvisor", opts.Dir, atoll.ErrInvalid, err)
	}
	for _, path := range opts.HostPaths {
		if !filepath.IsAbs(path) || filepath.Clean(path) == "/" {
			return nil, atoll.Errorf("gvisor", "", atoll.ErrInvalid, "host path %q: must be an absolute path other than /", path)
		}
	}
	if opts.Platform == "" {
		opts.Platform = "systrap"
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	state, err := statedir.Open(dir)
	if err != nil {
		return nil, atoll.E("gvisor", dir, diskKind(err), err)
	}
	if opts.RunDir == "" {
		opts.RunDir = state.DefaultRun()
	}
	if opts.Cgroup == "" {
		opts.Cgroup = "atoll-" + state.ShortName() + "-"
	}
	if opts.RunDir, err = filepath.Abs(opts.RunDir); err != nil {
		return nil, atoll.E("gvisor", opts.RunDir, atoll.ErrInvalid, err)
	}
	images, err := image.Open(state.Images(), opts.Image)
	if err != nil {
		return nil, err
	}
	p := &Provider{
		opts: opts, dir: state, images: images, log: opts.Log, keepers: map[string]*keeperClient{}, wake: make(chan struct{}, 1),
		info: atoll.Info{Name: "gvisor", Isolation: atoll.IsolationKernel, Version: Version(), Caps: caps()},
	}
	p.events = newEvents(p)
	p.spare = &spare{p: p, quit: make(chan struct{})}
	p.spare.refill(0)
	ctx, cancel := context.WithCancel(context.Background())
	p.sweeper = cancel
	p.work.Go(func() { p.sweep(ctx) })
	return p, nil
}

// Version is that of the gVisor module that is compiled in.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "gvisor.dev/gvisor" {
				return dep.Version
			}
		}
	}
	return "unknown"
}

// Info implements atoll.Provider.
func (p *Provider) Info() atoll.Info { return p.info }

// Close implements atoll.Provider. Sandboxes live on.
func (p *Provider) Close() error {
	p.closing.Do(func() {
		p.sweeper()
		p.spare.close()
		p.events.close()
		p.work.Wait()
		if err := p.images.Close(); err != nil {
			p.log.Error("close", "err", err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, k := range p.keepers {
			k.close()
		}
		clear(p.keepers)
	})
	return nil
}

// Create implements atoll.Provider.
func (p *Provider) Create(ctx context.Context, spec *atoll.Spec) (_ atoll.Sandbox, err error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	s, err := spec.MadeBy(p.info.Name)
	if err != nil {
		return nil, err
	}
	if err := p.supports(s); err != nil {
		return nil, err
	}
	if err := volume.Mountable(s); err != nil {
		return nil, err
	}
	c := &creation{p: p, rec: &statedir.Record{Status: atoll.Status{
		ID: s.ID, Provider: p.info.Name, Spec: *s, State: atoll.StateCreating, Created: time.Now(), Caps: p.info.Caps,
	}}}
	if s.TTL > 0 {
		c.rec.Status.Expires = c.rec.Status.Created.Add(time.Duration(s.TTL))
	}
	defer func() {
		if err != nil {
			c.undo()
		}
		c.lock.Release()
	}()
	for _, step := range []func(context.Context) error{c.reserve, c.image, c.mounts, c.start} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return &sandbox{p, s.ID}, nil
}

// Get implements atoll.Provider.
func (p *Provider) Get(_ context.Context, id string) (atoll.Sandbox, error) {
	n, err := atoll.NormalizeID(id)
	if err != nil || n == "" {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	if _, err := p.read("get", n); err != nil {
		return nil, err
	}
	return &sandbox{p, n}, nil
}

// Resolve finds the id for a name without reading every record.
func (p *Provider) Resolve(_ context.Context, project, name string) (string, error) {
	id, err := p.dir.Owner(project, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", atoll.E("get", name, atoll.ErrNotFound, nil)
	}
	if err != nil {
		return "", atoll.E("get", name, atoll.ErrInternal, err)
	}
	if _, err := p.read("get", id); err != nil {
		return "", atoll.E("get", name, atoll.ErrNotFound, nil)
	}
	return id, nil
}

// List implements atoll.Provider.
func (p *Provider) List(_ context.Context, f atoll.Filter) ([]atoll.Status, error) {
	ids, err := p.dir.IDs()
	if err != nil {
		return nil, atoll.E("list", "", atoll.ErrInternal, err)
	}
	list := make([]atoll.Status, 0, len(ids))
	for _, id := range ids {
		rec, err := p.read("list", id)
		if atoll.KindOf(err) == atoll.ErrNotFound {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if f.Match(rec.Status) {
			list = append(list, rec.Status)
		}
	}
	slices.SortStableFunc(list, func(a, b atoll.Status) int { return a.Created.Compare(b.Created) })
	return list, nil
}

// read returns the sandbox's record as it is now: what the record says, unless
// it says that something runs and nothing does.
func (p *Provider) read(op, id string) (*statedir.Record, error) {
	rec, err := p.dir.Read(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, atoll.E(op, id, atoll.ErrNotFound, nil)
	}
	if err != nil {
		return nil, atoll.E(op, id, atoll.ErrInternal, err)
	}
	st := &rec.Status
	st.Spec.Provider = p.info.Name
	switch {
	case rec.Damaged:
		st.Provider, st.Caps = p.info.Name, p.info.Caps
		return rec, nil
	case rec.Removing != nil:
		p.leaves(st)
		return rec, nil
	case st.State == atoll.StateCreating && !p.dir.Busy(id):
		p.rouse() // who made it has died
		return rec, nil
	}
	if live(st.State) && !p.dir.Alive(id) {
		// The keeper may have ended properly between the two looks.
		again, err := p.dir.Read(id)
		if err == nil && live(again.Status.State) && again.Keeper == rec.Keeper {
			st.State, st.Ready, st.Reason = atoll.StateFailed, false, deathOf(rec)
			return rec, nil
		}
		return p.read(op, id)
	}
	return rec, nil
}

// leaves makes st that of a sandbox whose removal has begun.
func (p *Provider) leaves(st *atoll.Status) {
	st.Ready = false
	if p.dir.Busy(st.ID) {
		if live(st.State) {
			st.State = atoll.StateStopped
		}
		st.Reason = "it is being removed"
		return
	}
	st.State, st.Reason = atoll.StateFailed, "its removal was interrupted: remove it again"
	p.rouse() // most likely it need not be asked for
}

// live reports whether a sandbox in that state has a keeper.
func live(s atoll.State) bool { return s == atoll.StateRunning || s == atoll.StatePaused }

// deathOf says what became of a keeper that left a running record behind.
func deathOf(rec *statedir.Record) string {
	if me, err := statedir.Identify(os.Getpid()); err == nil && rec.Keeper.Boot != "" && me.Boot != rec.Keeper.Boot {
		return "the machine was restarted; start it again to go on with its work directory and volumes"
	}
	return "its keeper process died; start it again to go on with its work directory and volumes"
}

// Probe implements atoll.Prober.
func (p *Provider) Probe(ctx context.Context) atoll.Probe { return p.probe(ctx) }

// Prepare implements atoll.Preparer: it pulls the image.
func (p *Provider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if _, err := spec.MadeBy(p.info.Name); err != nil {
		return err
	}
	if isHost(spec.Image) || spec.Snapshot != "" {
		return nil
	}
	_, err := p.images.Get(ctx, spec.Image, progress)
	return err
}

// isHost reports whether the image is the machine's own file system.
func isHost(image string) bool { return image == "" || image == hostImage }

const hostImage = "host"

// diskKind is the kind of an error of the state directory.
func diskKind(err error) atoll.Kind {
	if disk.IsFull(err) {
		return atoll.ErrExhausted
	}
	if errors.Is(err, fs.ErrPermission) {
		return atoll.ErrDenied
	}
	return atoll.ErrInternal
}

var (
	_ atoll.Provider      = (*Provider)(nil)
	_ atoll.Resolver      = (*Provider)(nil)
	_ atoll.Prober        = (*Provider)(nil)
	_ atoll.Preparer      = (*Provider)(nil)
	_ atoll.VolumeStore   = (*Provider)(nil)
	_ atoll.SnapshotStore = (*Provider)(nil)

	_ atoll.ProjectRemover = (*Provider)(nil)
)
