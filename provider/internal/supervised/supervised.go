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

// A Backend holds the parts that differ between providers. All methods except Open and
// Close may be called concurrently.
type Backend interface {
	// Open opens the backend's own data in the state directory, such as an image store,
	// before any other call. Close closes it.
	Open(dir statedir.Dir) error
	Close() error
	// Probe finds out whether sandboxes work here; see Try.
	Probe(ctx context.Context) atoll.Probe
	// Supports rejects a valid spec that asks for something this provider cannot do.
	Supports(spec *atoll.Spec) error

	// Image finds the image of a sandbox that is not made from a snapshot, and records it
	// in rec.
	Image(ctx context.Context, rec *statedir.Record) error
	// Restores rejects a spec with which the snapshot cannot be restored.
	Restores(snap *atoll.Snapshot, spec *atoll.Spec) error
	// Hold makes sure that the image named by rec.Image exists, and keeps it for as long as
	// any process has the returned file open; the supervisor inherits that file. A nil file
	// means that there is nothing to hold.
	Hold(ctx context.Context, rec *statedir.Record) (*os.File, error)

	// Helper returns the path of the binary to execute as supervisor.
	Helper() (string, error)
	// Limits returns the limits of a supervisor and of all that it starts, for a sandbox
	// with the resources r.
	Limits(r atoll.Resources) cgroup.Limits
	// Job adapts the supervisor's job where the provider differs, and returns additional
	// data for the engine, which is passed on as JSON.
	Job(job *supervisor.Job) (any, error)
}

// Options configure the provider. Info, Backend, Supervisor and Dir are required; other
// zero fields mean defaults.
type Options struct {
	// Info describes the provider. Its name is in the errors of New.
	Info    atoll.Info
	Backend Backend
	// Supervisor is the argv[0] of the provider's supervisors.
	Supervisor string
	// Steps lists the names of the steps with which a supervisor starts a sandbox. See
	// Step.
	Steps []string

	// Dir holds sandboxes, volumes and snapshots. New makes it if it is missing; it must
	// belong to this user alone. Many providers of one kind, in many processes, may share
	// one directory.
	Dir string
	// RunDir holds data that must not survive a reboot, and must belong to this user alone.
	// New makes it if it is missing. Default: see statedir.Dir.DefaultRun.
	RunDir string
	// Cgroups is the group below which each supervisor gets a cgroup of its own, see cgroup.Base; "" means that they get none.
	Cgroups string
	// Cgroup is the prefix of the cgroups' names. Default: "atoll-" and a hash of Dir,
	// because callers choose ids, and sandboxes in two state directories may have the same
	// id.
	Cgroup string
	// Spare keeps one supervisor process started ahead of the next Create, which then saves
	// that time: for servers, not for programs that make one sandbox.
	Spare bool
	// Starts is the number of sandboxes that start at a time, for providers whose starts use the CPU only; 0 means any
	// number. Others wait for their turn, in the order of their requests.
	Starts int
	// Stock keeps sandboxes booted ahead of the next Creates; the engine must be an Adopter.
	Stock Stock
	// SubIDs, if not nil, are further ids for the user namespaces of supervisors.
	SubIDs *SubIDs
	// Log receives log messages. Default: they are discarded.
	Log *slog.Logger

	// Step is a test hook: it is called before each step of making and starting a sandbox,
	// and its error fails that step. The names of Steps get the prefix "supervisor: ".
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

	records recordCache
	spare   *spareSlot
	stock   *stock
	starts  *startQueue
	sweeper *sweeper.Sweeper
	work    sync.WaitGroup
	closing sync.Once
}

// New opens the state directory. It does not check whether sandboxes work here: Probe does,
// and Create reports it.
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
	p.starts = newStartQueue(p.opts.Starts, slowStart)
	p.spare = &spareSlot{p: p, quit: make(chan struct{})}
	p.spare.scheduleRefill(0)
	p.stock = newStock(p)
	p.sweeper.Start(p.sweepAll)
	return p, nil
}

// Info implements atoll.Provider.
func (p *Provider) Info() atoll.Info { return p.opts.Info }

// Close implements atoll.Provider. Sandboxes keep running.
func (p *Provider) Close() error {
	p.closing.Do(func() {
		p.sweeper.Close()
		p.spare.close()
		p.stock.closeStock()
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
	s, err := spec.Complete(p.opts.Info.Name)
	if err != nil {
		return nil, err
	}
	if err := p.opts.Backend.Supports(s); err != nil {
		return nil, err
	}
	if err := volume.CheckMounts(s); err != nil {
		return nil, err
	}
	secrets, err := p.prepareSecrets(ctx, s)
	if err != nil {
		return nil, err
	}
	c := &creation{p: p, rec: &statedir.Record{Secrets: secrets, Status: atoll.Status{
		ID: s.ID, Provider: p.opts.Info.Name, Spec: *s, State: atoll.StateCreating, Created: time.Now(), Caps: p.opts.Info.Caps,
	}}}
	defer p.stock.beginCreate(s)()
	if c.booted, err = p.stock.takeFor(ctx, s); err != nil {
		return nil, err
	}
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

// readRecord returns the sandbox's record with its actual state: a record that says that
// the sandbox runs, although it does not, is returned as failed.
func (p *Provider) readRecord(op, id string) (*statedir.Record, error) {
	rec, err := p.records.readRecord(p.dir, id)
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
		p.sweeper.Wake() // its maker has died
		return rec, nil
	}
	if isLive(st.State) && !p.dir.Alive(id) {
		// Between reading the record and checking the lock, the supervisor may have ended properly, or a
		// removal may have begun and ended it.
		again, err := p.dir.Read(id)
		if err == nil && again.Removing == nil && isLive(again.Status.State) && again.Supervisor == rec.Supervisor {
			st.State, st.Ready, st.Reason = atoll.StateFailed, false, describeDeath(rec)
			return rec, nil
		}
		return p.readRecord(op, id)
	}
	return rec, nil
}

// reasonRemoving is the reason of a sandbox that a process is removing.
const reasonRemoving = "it is being removed"

// describeRemoval changes st to the status of a sandbox whose removal has begun.
func (p *Provider) describeRemoval(st *atoll.Status) {
	st.Ready = false
	if p.dir.Busy(st.ID) {
		if isLive(st.State) {
			st.State = atoll.StateStopped
		}
		st.Reason = reasonRemoving
		return
	}
	st.State, st.Reason = atoll.StateFailed, "its removal was interrupted: remove it again"
	p.sweeper.Wake() // most likely the sweep finishes the removal before the user asks again
}

// isLive reports whether a sandbox in that state has a supervisor.
func isLive(s atoll.State) bool { return s == atoll.StateRunning || s == atoll.StatePaused }

// describeDeath says why a supervisor left a record behind that says that its sandbox runs.
func describeDeath(rec *statedir.Record) string {
	if me, err := statedir.Identify(os.Getpid()); err == nil && rec.Supervisor.Boot != "" && me.Boot != rec.Supervisor.Boot {
		return "the machine was restarted; start the sandbox again to continue with its work directory and volumes"
	}
	return "its supervisor process died; start the sandbox again to continue with its work directory and volumes"
}

// Probe implements atoll.Prober.
func (p *Provider) Probe(ctx context.Context) atoll.Probe { return p.opts.Backend.Probe(ctx) }

// diskKind returns the kind of an error of the state directory.
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
