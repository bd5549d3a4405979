// Package vmdocker is a provider whose sandboxes are containers in virtual machines: one
// machine for each project, with a Docker Engine in it. A hypervisor isolates the projects from
// each other, and starting a sandbox takes no longer than starting a container.
//
// It combines two other providers: the machines are sandboxes of one, and the containers in
// each are those of a docker.Provider, which reaches its engine through the machine. So it does
// not know what machines run on. It starts a machine when a project needs it; the machine stops
// by itself when nothing has run in it for a while, and its files are on a disk of its project.
// The provider records the state of sandboxes, so that it can report them while their machine
// is off.
package vmdocker

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/keymutex"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// Options configure the provider. Dir, Machines, Config.DataDir and Guest are required;
// zero fields mean defaults.
type Options struct {
	// Dir stores the state of sandboxes. New creates it if it does not exist. Many programs may
	// use one directory.
	Dir string
	// Machines creates the machines, and puts the data of each at Config.DataDisk of its
	// project. A machine is a sandbox that forwards port 2375 to its engine's socket, and that
	// stops when nothing else runs in it. Machines creates nothing else, and the caller owns
	// it.
	Machines atoll.Provider
	// Bundle is the image of machines.
	Bundle string
	// Forget removes the data at Config.DataDisk of a machine that has ended; nil removes a
	// file.
	Forget func(ctx context.Context, path string) error
	// Config has the size of machines, the time after which an idle one stops, and the path of
	// their data. Machines boot Bundle, whatever Config says. If Machines limits neither memory
	// nor CPUs, the machines share everything.
	Config vm.Config
	// Disk is the size of a project's disk, whose unused part takes no space; 0 means
	// DefaultDisk. It may grow. If Machines limits no disks, it has no bound.
	Disk atoll.Bytes
	// Slow returns by which factor a machine is slower than hardware; nil means 1.
	Slow func(ctx context.Context) int

	// Guest, Image and Fetch are fields of docker.Options.
	Guest func() ([]byte, error)
	Image string
	Fetch func(ctx context.Context, ref, as string, policy atoll.PullPolicy, progress func(atoll.Progress)) (io.ReadCloser, error)

	// Log receives errors that no call can return; nil discards them.
	Log *slog.Logger

	ready time.Duration // for tests: instead of readyTimeout
}

// DefaultDisk is the default size of a project's disk.
const DefaultDisk atoll.Bytes = 20 << 30

// Name is the name of the provider.
const Name = "vmdocker"

// A Provider is an atoll.Provider.
type Provider struct {
	opts  Options
	idle  time.Duration // after which machines stop; 0 means never
	log   *slog.Logger
	info  atoll.Info
	notes noteStore
	watch *watcher
	boots keymutex.Locks // by project: one call at a time starts a machine

	mu      sync.Mutex
	closed  bool
	engines map[string]*engine // by project
}

// New returns a provider of the sandboxes in Dir. It starts no machine. Kinds: ErrInvalid.
func New(opts Options) (*Provider, error) {
	if opts.Dir == "" || opts.Machines == nil || opts.Guest == nil {
		return nil, atoll.Errorf("open", Name, atoll.ErrInvalid, "Dir, Machines and Guest are required")
	}
	config, idle, err := opts.Config.Sized()
	if err != nil {
		return nil, err
	}
	opts.Config, opts.Disk = config, cmp.Or(opts.Disk, DefaultDisk)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Forget == nil {
		opts.Forget = func(_ context.Context, path string) error { return ignoreNotExist(os.Remove(path)) }
	}
	if opts.Slow == nil {
		opts.Slow = func(context.Context) int { return 1 }
	}
	if err := os.MkdirAll(noteStore(opts.Dir).removalsDir(), 0o700); err != nil {
		return nil, atoll.E("open", opts.Dir, atoll.KindOf(err), err)
	}
	p := &Provider{
		opts: opts, idle: idle, log: opts.Log, notes: noteStore(opts.Dir), engines: map[string]*engine{},
		info: atoll.Info{Name: Name, Isolation: atoll.IsolationVM},
	}
	inner := p.engineOptions("", nil)
	p.info.Caps = engineCaps(inner.Info().Caps)
	p.watch = newWatcher(p)
	return p, nil
}

// engineCaps returns the caps of containers in a machine, which has no resources of the host.
func engineCaps(of atoll.Caps) atoll.Caps {
	of.BindMounts, of.NetworkNamed, of.Publish, of.GPU = false, false, false, false
	return of
}

// Info implements atoll.Provider.
func (p *Provider) Info() atoll.Info { return p.info }

// Close implements atoll.Provider. Machines keep running.
func (p *Provider) Close() error {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	engines := p.engines
	p.engines = map[string]*engine{}
	p.mu.Unlock()
	if closed {
		return nil
	}
	p.watch.close()
	var errs []error
	for _, e := range engines {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}

// Create implements atoll.Provider.
func (p *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if spec.Project == "" {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "no project given: name one, as each has a machine of its own (--project NAME)")
	}
	spec, err := spec.Complete(Name)
	if err == nil {
		err = p.checkSupport(spec)
	}
	if err != nil {
		return nil, err
	}
	if st, err := p.notes.findStatus(spec.ID); err == nil && st.Spec.Project != spec.Project {
		return nil, atoll.Errorf("create", spec.ID, atoll.ErrAlreadyExists, "a sandbox with the id %s already exists in project %s", spec.ID, st.Spec.Project)
	}
	inner := spec.Clone()
	inner.Provider = ""
	err = p.withEngineRetry(ctx, spec.Project, func(ctx context.Context, e *engine) error {
		made, err := e.docker.Create(ctx, inner)
		if err != nil {
			return err
		}
		return p.learnCreated(ctx, e, made)
	})
	if err != nil {
		return nil, err
	}
	return &sandbox{p, spec.ID, spec.Project}, nil
}

// checkSupport returns an error if the provider does not support what the spec asks for. Kinds:
// ErrUnsupported, and those of docker.CheckImage.
func (p *Provider) checkSupport(spec *atoll.Spec) error {
	err := spec.CheckCaps(Name, p.info.Caps, map[string]string{
		"bind_mounts":   "copy files in, or use a volume",
		"publish":       "dial instead, which needs no network (atoll port-forward)",
		"network_named": "use mode on",
		"egress":        "use mode on",
	})
	if err != nil {
		return err
	}
	return docker.CheckImage(spec.Image)
}

// Get implements atoll.Provider.
func (p *Provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	n, err := atoll.NormalizeID(id)
	if err != nil || n == "" {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	st, err := p.findStatus(ctx, "get", n)
	if err != nil {
		return nil, err
	}
	return &sandbox{p, n, st.Spec.Project}, nil
}

// findStatus returns the status of a sandbox from its engine, or the recorded one if the engine
// does not run. Kinds: ErrNotFound, ErrUnavailable.
func (p *Provider) findStatus(ctx context.Context, op, id string) (atoll.Status, error) {
	st, err := p.notes.findStatus(id)
	if err != nil {
		return atoll.Status{}, atoll.E(op, id, atoll.KindOf(err), err)
	}
	list, err := p.listProject(ctx, st.Spec.Project, &id)
	if err != nil {
		return atoll.Status{}, err
	}
	if len(list) == 0 {
		return atoll.Status{}, atoll.E(op, id, atoll.ErrNotFound, nil)
	}
	return list[0], nil
}

// List implements atoll.Provider.
func (p *Provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	projects, err := p.notes.listProjects()
	if err != nil {
		return nil, atoll.E("list", "", atoll.KindOf(err), err)
	}
	var list []atoll.Status
	for _, project := range projects {
		if f.Project != "" && f.Project != project {
			continue
		}
		all, err := p.listProject(ctx, project, nil)
		if err != nil {
			return nil, err
		}
		list = append(list, slices.DeleteFunc(all, func(st atoll.Status) bool { return !f.Match(st) })...)
	}
	slices.SortStableFunc(list, func(a, b atoll.Status) int { return a.Created.Compare(b.Created) })
	return list, nil
}

// listProject lists the sandboxes of a project, or only the one with that id. It starts no
// machine.
func (p *Provider) listProject(ctx context.Context, project string, id *string) ([]atoll.Status, error) {
	e, m, err := p.runningEngine(ctx, project)
	if err != nil {
		return nil, err
	}
	if e != nil {
		list, err := p.refreshNotes(ctx, e, id)
		if err == nil || ctx.Err() != nil || atoll.KindOf(err) != atoll.ErrUnavailable {
			return list, err
		}
		if e, m, err = p.runningEngine(ctx, project); err != nil { // the machine has just ended, or is just starting
			return nil, err
		}
	}
	noted, err := p.notes.listStatuses(project)
	if err != nil {
		return nil, atoll.E("list", project, atoll.KindOf(err), err)
	}
	var list []atoll.Status
	for _, st := range noted {
		if id != nil && st.ID != *id || !st.Expires.IsZero() && time.Now().After(st.Expires) {
			continue
		}
		if e == nil {
			st = asleepStatus(st, m)
		}
		list = append(list, st)
	}
	return list, nil
}

// refreshNotes asks an engine for its sandboxes, or only the one with that id, and records
// them.
func (p *Provider) refreshNotes(ctx context.Context, e *engine, id *string) (list []atoll.Status, err error) {
	before, err := p.notes.listRemovals(e.project)
	if err != nil {
		return nil, atoll.E("list", e.project, atoll.KindOf(err), err)
	}
	var noted []atoll.Status // listed first, so that a sandbox created meanwhile is not forgotten
	if id != nil {
		noted = []atoll.Status{{ID: *id}}
	} else if noted, err = p.notes.listStatuses(e.project); err != nil {
		return nil, atoll.E("list", e.project, atoll.KindOf(err), err)
	}
	err = p.withPings(ctx, e, func(ctx context.Context) (err error) {
		list, err = e.listSandboxes(ctx, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	after, err := p.notes.listRemovals(e.project) // of a sandbox removed before, the container may have gone since
	if err != nil {
		return nil, atoll.E("list", e.project, atoll.KindOf(err), err)
	}
	list = slices.DeleteFunc(list, func(st atoll.Status) bool { return before.containsSandbox(st) || after.containsSandbox(st) })
	there := map[string]bool{}
	for _, st := range list {
		there[st.ID] = true
		if err := p.notes.writeStatus(st); err != nil {
			return nil, err
		}
	}
	for _, st := range noted {
		if !there[st.ID] {
			if err := p.notes.removeStatus(e.project, st.ID); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// learnTimeout bounds each of learnCreated's two parts, on hardware.
const learnTimeout = 30 * time.Second

// learnCreated records a sandbox that was just created, and its image, even if ctx has ended. If that
// fails, it removes the sandbox, and leaves its data volume.
func (p *Provider) learnCreated(ctx context.Context, e *engine, made atoll.Sandbox) error {
	ctx = context.WithoutCancel(ctx)
	limit := p.slowFactor(ctx) * learnTimeout
	learn, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := p.learnImages(learn, e)
	if err == nil {
		err = p.learnSandbox(learn, e, made.ID())
	}
	if err == nil {
		return nil
	}
	undo, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return errors.Join(err, made.Remove(undo))
}

// learnSandbox records the current state of a sandbox, and the project's volumes.
func (p *Provider) learnSandbox(ctx context.Context, e *engine, id string) error {
	_, err := p.refreshNotes(ctx, e, &id)
	if err != nil {
		return err
	}
	return p.learnVolumes(ctx, e)
}

// Resolve implements atoll.Resolver.
func (p *Provider) Resolve(ctx context.Context, project, name string) (string, error) {
	list, err := p.listProject(ctx, project, nil)
	if err != nil {
		return "", err
	}
	for _, st := range list {
		if st.Spec.Name == name {
			return st.ID, nil
		}
	}
	return "", atoll.E("get", name, atoll.ErrNotFound, nil)
}

// Probe implements atoll.Prober. It probes Machines, and checks that the guest's program
// exists.
func (p *Provider) Probe(ctx context.Context) atoll.Probe {
	probe := atoll.ProbeProvider(ctx, p.opts.Machines)
	if _, err := p.opts.Guest(); err != nil && probe.OK {
		return atoll.Probe{Reason: "the guest's program is missing: " + err.Error(), Fix: "make guest"}
	}
	return probe
}

var (
	_ atoll.Provider = (*Provider)(nil)
	_ atoll.Resolver = (*Provider)(nil)
	_ atoll.Prober   = (*Provider)(nil)
)
