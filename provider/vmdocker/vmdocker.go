// Package vmdocker is a provider whose sandboxes are containers in virtual machines: one
// machine for each project, with a Docker Engine in it. What keeps projects apart is a
// hypervisor, and starting a sandbox takes no longer than starting a container.
//
// It is made of two others: the machines are sandboxes of one, and in each the containers
// are those of a docker.Provider, which reaches its engine through the machine. So it
// does not know what machines run on. A machine is started when a project needs it, and
// stops by itself when nothing has run in it for a while; what it keeps is on a disk of its
// project. What is known of sandboxes is written down, so that they can be looked at
// while their machine is off.
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
	// Dir keeps what is known of sandboxes. It is made when missing. Many programs may
	// use one directory.
	Dir string
	// Machines makes the machines, and puts what one keeps to Config.DataDisk of
	// its project. A machine is a sandbox that joins port 2375 to its engine's socket,
	// and stops when nothing runs in it but that. It makes nothing else, and stays the caller's.
	Machines atoll.Provider
	// Bundle is the image of machines.
	Bundle string
	// Forget removes what a machine that has ended has kept at Config.DataDisk; nil means
	// that it is a file.
	Forget func(ctx context.Context, path string) error
	// Config says how large they are, how long one stays that nobody needs, and where
	// what they keep is. What they boot is Bundle's. Where Machines limits neither memory
	// nor CPUs, machines share all there are.
	Config vm.Config
	// Disk is the size of a project's disk, of which what is not used takes no space;
	// 0 means DefaultDisk. It may become larger. Where Machines limits no disks, it has
	// no bound.
	Disk atoll.Bytes
	// Slow is how many times as long as on hardware things take in a machine; nil
	// means 1.
	Slow func(ctx context.Context) int

	// Guest, Image and Fetch are those of docker.Options.
	Guest func() ([]byte, error)
	Image string
	Fetch func(ctx context.Context, ref, as string, progress func(atoll.Progress)) (io.ReadCloser, error)

	// Log is told of what cannot be returned; nil discards.
	Log *slog.Logger

	ready time.Duration // instead of readyTime
}

// DefaultDisk is the size of a project's disk.
const DefaultDisk atoll.Bytes = 20 << 30

// Name is the provider's.
const Name = "vmdocker"

// A Provider is an atoll.Provider.
type Provider struct {
	opts  Options
	idle  time.Duration // of machines; 0 is never
	log   *slog.Logger
	info  atoll.Info
	notes noteStore
	watch *watcher
	boots keymutex.Locks // by project: one at a time starts a machine

	mu      sync.Mutex
	closed  bool
	engines map[string]*engine // by project
}

// New returns a provider of the sandboxes in Dir. It starts no machine. Kinds: ErrInvalid.
func New(opts Options) (*Provider, error) {
	if opts.Dir == "" || opts.Machines == nil || opts.Guest == nil {
		return nil, atoll.Errorf("open", Name, atoll.ErrInvalid, "no directory, no guest or nothing that makes machines given")
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

// engineCaps are those of containers in a machine, which has nothing of the host's.
func engineCaps(of atoll.Caps) atoll.Caps {
	of.BindMounts, of.NetworkNamed, of.Publish, of.GPU = false, false, false, false
	return of
}

// Info implements atoll.Provider.
func (p *Provider) Info() atoll.Info { return p.info }

// Close implements atoll.Provider. Machines go on.
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
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if spec.Project == "" {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "no project given, and each has a machine of its own: name one (--project NAME)")
	}
	spec, err := spec.MadeBy(Name)
	if err == nil {
		err = checkSupport(spec)
	}
	if err != nil {
		return nil, err
	}
	if st, err := p.notes.findStatus(spec.ID); err == nil && st.Spec.Project != spec.Project {
		return nil, atoll.Errorf("create", spec.ID, atoll.ErrAlreadyExists, "a sandbox with the id %s is there already, in project %s", spec.ID, st.Spec.Project)
	}
	inner := spec.Clone()
	inner.Provider = ""
	err = p.withEngineRetry(ctx, spec.Project, func(ctx context.Context, e *engine) error {
		if _, err := e.docker.Create(ctx, inner); err != nil {
			return err
		}
		if err := p.learnImages(ctx, e); err != nil {
			return err
		}
		return p.learnSandbox(ctx, e, spec.ID)
	})
	if err != nil {
		return nil, err
	}
	return &sandbox{p, spec.ID, spec.Project}, nil
}

// checkSupport says what of the spec cannot be had.
func checkSupport(spec *atoll.Spec) error {
	for _, wish := range []struct {
		asked bool
		what  string
	}{
		{slices.ContainsFunc(spec.Mounts, func(m atoll.Mount) bool { return m.Type == atoll.MountBind }), "directories of this machine: copy files in, or use a volume"},
		{spec.Publishes(), "published ports: dial instead, which needs no network (atoll port-forward)"},
		{spec.Network.Mode == atoll.NetworkNamed, "networks of the engine's: use mode on"},
		{spec.Network.Mode == atoll.NetworkEgress, "network mode egress: use mode on"},
		{spec.Resources.GPUs != "", "GPUs"},
	} {
		if wish.asked {
			return atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "containers in machines have no %s", wish.what)
		}
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

// findStatus is that of a sandbox, as its engine knows it, or as it was when that was last
// asked. Kinds: ErrNotFound, ErrUnavailable.
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

// listProject lists the sandboxes of a project, or only that with the id. No machine is
// started for it.
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
		if e, m, err = p.runningEngine(ctx, project); err != nil { // it has just ended, or is just starting
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

// refreshNotes asks an engine for its sandboxes, or only that with the id, and notes what it says.
func (p *Provider) refreshNotes(ctx context.Context, e *engine, id *string) (list []atoll.Status, err error) {
	before, err := p.notes.listRemovals(e.project)
	if err != nil {
		return nil, atoll.E("list", e.project, atoll.KindOf(err), err)
	}
	var noted []atoll.Status // before, so that what is made meanwhile is not forgotten
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
	after, err := p.notes.listRemovals(e.project) // of what was removed before, the container may have gone since
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

// learnSandbox notes what the engine knows of a sandbox now.
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

// Probe implements atoll.Prober: what it takes is a machine.
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
