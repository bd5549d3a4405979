// Package supervised implements a provider whose sandboxes are each owned by a process of
// their own, the supervisor (see package supervisor). A sandbox's record is on disk, locks
// guard its life, and the provider reaches a running sandbox through its supervisor. So
// there is no daemon, and all processes that use a state directory are equal.
//
// A concrete provider adds a Backend, and a supervisor.Engine for its supervisors:
//
//	type Provider struct{ *supervised.Provider }
//
//	p, err := supervised.New(supervised.Options{Info: info, Backend: &backend{}, Supervisor: Argv0, Dir: dir})
package supervised

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
	"github.com/seed46cd37a8/atoll/provider/internal/sweeper"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// A Backend is what the sandboxes of one provider have of their own. All methods but
// Open and Close may be called at once.
type Backend interface {
	// Open opens what it keeps besides sandboxes in the state directory, before
	// anything else is asked of it. Close closes that.
	Open(dir statedir.Dir) error
	Close() error
	// Probe finds out whether sandboxes work here; see Try.
	Probe(ctx context.Context) atoll.Probe
	// Supports refuses what a valid spec asks for and cannot be done here.
	Supports(spec *atoll.Spec) error

	// Image finds what a sandbox starts from that is not made from a snapshot, and says
	// in rec what that is.
	Image(ctx context.Context, rec *statedir.Record) error
	// Restores refuses a spec for which it could not go on where the snapshot was taken.
	Restores(snap *atoll.Snapshot, spec *atoll.Spec) error
	// Hold sees to it that what rec.Image names is there, and stays as long as
	// anybody has the file open that it returns, which the supervisor inherits. nil: there
	// is nothing to see to.
	Hold(ctx context.Context, rec *statedir.Record) (*os.File, error)

	// Helper is the path of the binary to execute as supervisor.
	Helper() (string, error)
	// Limits are those of a supervisor and all that it starts, for a sandbox that has r.
	Limits(r atoll.Resources) cgroup.Limits
	// Job changes what the supervisor is told where that is not all of it, and returns, to
	// be given to the engine as JSON, what that has to know besides.
	Job(job *supervisor.Job) (any, error)
}

// Options configure the provider. Info, Backend, Supervisor and Dir are required; other
// zero fields mean defaults.
type Options struct {
	// Info describes the provider. Its name is in the errors of New.
	Info    atoll.Info
	Backend Backend
	// Supervisor is the argv[0] of its supervisors.
	Supervisor string
	// Steps are the names of what a supervisor does to start a sandbox. See Step.
	Steps []string

	// Dir keeps sandboxes, volumes and snapshots; it is made when missing, and must
	// be this user's alone. Many providers of one kind, in many processes, may use one
	// directory.
	Dir string
	// RunDir keeps what must not survive a reboot, and must be this user's alone; it
	// is made when missing. Default: see statedir.Dir.DefaultRun.
	RunDir string
	// Cgroups says that there can be cgroups here, and that each supervisor gets one.
	Cgroups bool
	// Cgroup is what their names begin with. Default: "atoll-", and what tells Dir
	// from other directories: callers choose ids, and may choose the same for
	// sandboxes of several.
	Cgroup string
	// Spare keeps one supervisor process started ahead of the next Create, which then
	// need not wait for that: for servers, not for programs that make one sandbox.
	Spare bool
	// Log receives what the provider has to say. Default: nowhere.
	Log *slog.Logger

	// Step is asked before each step of making and starting a sandbox, and fails it:
	// for tests. Those of Steps are called "supervisor: ...".
	Step func(name string) error
}

// A Provider makes sandboxes that have supervisors.
type Provider struct {
	opts   Options
	dir    statedir.Dir
	log    *slog.Logger
	events *eventWatcher

	mu      sync.Mutex
	clients map[string]*supervisorClient // by sandbox id

	spare   *spareSlot
	sweeper *sweeper.Sweeper
	work    sync.WaitGroup
	closing sync.Once
}

// New opens the state directory. It does not check whether sandboxes work
// here: Probe does, and Create says so.
func New(opts Options) (*Provider, error) {
	name := opts.Info.Name
	if opts.Dir == "" {
		return nil, atoll.Errorf(name, "", atoll.ErrInvalid, "no state directory given")
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, atoll.E(name, opts.Dir, atoll.ErrInvalid, err)
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	state, err := statedir.Open(dir)
	if err != nil {
		return nil, atoll.E(name, dir, diskKind(err), err)
	}
	if opts.RunDir == "" {
		opts.RunDir = state.DefaultRun()
	}
	if opts.Cgroup == "" {
		opts.Cgroup = "atoll-" + state.ShortName() + "-"
	}
	if opts.RunDir, err = filepath.Abs(opts.RunDir); err != nil {
		return nil, atoll.E(name, opts.RunDir, atoll.ErrInvalid, err)
	}
	if err := opts.Backend.Open(state); err != nil {
		return nil, err
	}
	p := &Provider{opts: opts, dir: state, log: opts.Log, clients: map[string]*supervisorClient{}, sweeper: sweeper.New()}
	p.events = newEvents(p)
	p.spare = &spareSlot{p: p, quit: make(chan struct{})}
	p.spare.scheduleRefill(0)
	p.sweeper.Start(p.sweepAll)
	return p, nil
}

// Info implements atoll.Provider.
func (p *Provider) Info() atoll.Info { return p.opts.Info }

// Close implements atoll.Provider. Sandboxes live on.
func (p *Provider) Close() error {
	p.closing.Do(func() {
		p.sweeper.Close()
		p.spare.close()
		p.events.close()
		p.work.Wait()
		if err := p.opts.Backend.Close(); err != nil {
			p.log.Error("close", "err", err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range p.clients {
			c.close()
		}
		clear(p.clients)
	})
	return nil
}

// Create implements atoll.Provider.
func (p *Provider) Create(ctx context.Context, spec *atoll.Spec) (_ atoll.Sandbox, err error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	s, err := spec.MadeBy(p.opts.Info.Name)
	if err != nil {
		return nil, err
	}
	if err := p.opts.Backend.Supports(s); err != nil {
		return nil, err
	}
	if err := volume.Mountable(s); err != nil {
		return nil, err
	}
	c := &creation{p: p, rec: &statedir.Record{Status: atoll.Status{
		ID: s.ID, Provider: p.opts.Info.Name, Spec: *s, State: atoll.StateCreating, Created: time.Now(), Caps: p.opts.Info.Caps,
	}}}
	if s.TTL > 0 {
		c.rec.Status.Expires = c.rec.Status.Created.Add(time.Duration(s.TTL))
	}
	defer func() {
		if err != nil {
			c.undoCreation()
		}
		c.lock.Release()
	}()
	for _, step := range []func(context.Context) error{c.reserveID, c.resolveImage, c.prepareMounts, c.startSandbox} {
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
	if _, err := p.readRecord("get", n); err != nil {
		return nil, err
	}
	return &sandbox{p, n}, nil
}

// Resolve finds the id for a name without reading every record.
func (p *Provider) Resolve(_ context.Context, project, name string) (string, error) {
	id, err := p.dir.NameOwner(project, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", atoll.E("get", name, atoll.ErrNotFound, nil)
	}
	if err != nil {
		return "", atoll.E("get", name, atoll.ErrInternal, err)
	}
	if _, err := p.readRecord("get", id); err != nil {
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
		rec, err := p.readRecord("list", id)
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

// readRecord returns the sandbox's record as it is now: what the record says, unless
// it says that something runs and nothing does.
func (p *Provider) readRecord(op, id string) (*statedir.Record, error) {
	rec, err := p.dir.Read(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, atoll.E(op, id, atoll.ErrNotFound, nil)
	}
	if err != nil {
		return nil, atoll.E(op, id, atoll.ErrInternal, err)
	}
	st := &rec.Status
	st.Spec.Provider = p.opts.Info.Name
	switch {
	case rec.Damaged:
		st.Provider, st.Caps = p.opts.Info.Name, p.opts.Info.Caps
		return rec, nil
	case rec.Removing != nil:
		p.describeRemoval(st)
		return rec, nil
	case st.State == atoll.StateCreating && !p.dir.Busy(id):
		p.sweeper.Rouse() // who made it has died
		return rec, nil
	}
	if isLive(st.State) && !p.dir.Alive(id) {
		// The supervisor may have ended properly between the two looks.
		again, err := p.dir.Read(id)
		if err == nil && isLive(again.Status.State) && again.Supervisor == rec.Supervisor {
			st.State, st.Ready, st.Reason = atoll.StateFailed, false, describeDeath(rec)
			return rec, nil
		}
		return p.readRecord(op, id)
	}
	return rec, nil
}

// describeRemoval makes st that of a sandbox whose removal has begun.
func (p *Provider) describeRemoval(st *atoll.Status) {
	st.Ready = false
	if p.dir.Busy(st.ID) {
		if isLive(st.State) {
			st.State = atoll.StateStopped
		}
		st.Reason = "it is being removed"
		return
	}
	st.State, st.Reason = atoll.StateFailed, "its removal was interrupted: remove it again"
	p.sweeper.Rouse() // most likely it need not be asked for
}

// isLive reports whether a sandbox in that state has a supervisor.
func isLive(s atoll.State) bool { return s == atoll.StateRunning || s == atoll.StatePaused }

// describeDeath says what became of a supervisor that left a running record behind.
func describeDeath(rec *statedir.Record) string {
	if me, err := statedir.Identify(os.Getpid()); err == nil && rec.Supervisor.Boot != "" && me.Boot != rec.Supervisor.Boot {
		return "the machine was restarted; start it again to go on with its work directory and volumes"
	}
	return "its supervisor process died; start it again to go on with its work directory and volumes"
}

// Probe implements atoll.Prober.
func (p *Provider) Probe(ctx context.Context) atoll.Probe { return p.opts.Backend.Probe(ctx) }

// diskKind is the kind of an error of the state directory.
func diskKind(err error) atoll.Kind {
	if fsutil.IsFull(err) {
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
	_ atoll.VolumeStore   = (*Provider)(nil)
	_ atoll.SnapshotStore = (*Provider)(nil)

	_ atoll.ProjectRemover = (*Provider)(nil)
)
