// Package inprocess implements a provider whose sandboxes are directories and processes of this
// program. It provides ids and names, states, the main process, expiry, volumes, files, and the
// records with which a later program finds the sandboxes. A Backend starts the processes.
package inprocess

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
	"github.com/seed46cd37a8/atoll/provider/internal/watchhub"
)

// A Backend runs the processes of sandboxes. Its methods may be called concurrently.
type Backend interface {
	// Start starts cmd with io as its stdio; see process.Table.Start. cmd.Args is not empty.
	// Kinds: ErrCommandNotFound, ErrExecFailed.
	Start(ctx context.Context, place *Place, cmd *atoll.Command, io process.Stdio) (process.Handle, error)
	// Shell returns the shell to run in a terminal if the caller gave no command.
	Shell(place *Place, cmd *atoll.Command) string
	// Sweep ends every process of a sandbox, including those that a crashed program left
	// running.
	Sweep(id string) error
	// Removed releases what the backend holds for a sandbox that has been removed.
	Removed(id string)
	// OwnUser reports whether user names the user that all processes run as.
	OwnUser(user string) bool
}

// Options configure a Provider.
type Options struct {
	Info    atoll.Info
	Image   string // the default image; the only image without Caps.Images
	Backend Backend
	Dir     string       // for this provider alone; created if missing
	Address string       // Status.Address of every running sandbox
	Log     *slog.Logger // nil discards
	// Caps returns what a sandbox can do, if that depends on its spec; nil means Info.Caps for all.
	Caps func(*atoll.Spec) atoll.Caps
	// Advice is the advice of Spec.CheckCaps for a spec that needs more than Info.Caps.
	Advice map[string]string

	// Step, if not nil, is called before each step of creating and starting a sandbox. If it
	// returns an error, the step fails with that error. Tests use it to inject faults.
	Step func(name string) error
}

// A Provider is an atoll.Provider.
type Provider struct {
	opts    Options
	log     *slog.Logger
	volumes volume.Store
	hub     *watchhub.Hub
	work    sync.WaitGroup // goroutines that Close waits for

	mu        sync.Mutex
	closed    bool
	sandboxes map[string]*sandbox
	idsByName map[qualifiedName]string
}

// A qualifiedName is a name of a sandbox or a volume, which is unique in its project.
type qualifiedName struct{ project, name string }

// New opens a provider with the sandboxes that earlier programs recorded in opts.Dir. If a program
// died while its sandboxes ran, New ends their processes and marks them as failed. It does not touch
// the sandboxes of programs that still run.
func New(opts Options) (*Provider, error) {
	p := &Provider{opts: opts, log: opts.Log, sandboxes: map[string]*sandbox{}, idsByName: map[qualifiedName]string{}}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, atoll.E("open", opts.Dir, atoll.ErrInvalid, err)
	}
	p.opts.Dir = dir
	if p.volumes, err = volume.Open(filepath.Join(dir, "volumes")); err != nil {
		return nil, err
	}
	if err := p.volumes.EmptyTrash(); err != nil {
		p.log.Warn("sweep", "err", err)
	}
	if err := os.MkdirAll(p.recordDir(), 0o700); err != nil {
		return nil, atoll.E("open", dir, atoll.KindOf(err), err)
	}
	p.hub = watchhub.New(func() ([]atoll.Status, error) { return p.listStatuses(atoll.Filter{}), nil })
	if err := p.adoptAll(); err != nil {
		return nil, err
	}
	return p, nil
}

// Info implements atoll.Provider.
func (p *Provider) Info() atoll.Info { return p.opts.Info }

// Create implements atoll.Provider.
func (p *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	spec, err := spec.Complete(p.opts.Info.Name)
	if err != nil {
		return nil, err
	}
	if err := p.checkSupported(spec); err != nil {
		return nil, err
	}
	s, err := p.reserveID(spec)
	if err != nil {
		return nil, err
	}
	if err := s.createSandbox(ctx); err != nil {
		p.releaseID(s)
		return nil, err
	}
	return s, nil
}

// capsOf returns what a sandbox can do.
func (p *Provider) capsOf(spec *atoll.Spec) atoll.Caps {
	if p.opts.Caps == nil {
		return p.opts.Info.Caps
	}
	return p.opts.Caps(spec)
}

// checkStep calls Options.Step, so that a test can fail the step.
func (p *Provider) checkStep(name string) error {
	if p.opts.Step == nil {
		return nil
	}
	return p.opts.Step(name)
}

// reserveID adds a sandbox with the id and the name of spec, unless one of them is taken. The
// sandbox's busy is held.
func (p *Provider) reserveID(spec *atoll.Spec) (*sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrUnavailable, "the provider is closed")
	}
	if _, taken := p.sandboxes[spec.ID]; taken {
		return nil, atoll.Errorf("create", spec.ID, atoll.ErrAlreadyExists, "sandbox already exists")
	}
	if id, taken := p.idsByName[qualifiedName{spec.Project, spec.Name}]; taken {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrAlreadyExists, "name is already used by sandbox %s", id)
	}
	s := newSandbox(p, spec)
	p.addLocked(s)
	return s, nil
}

// addLocked adds s to the provider's maps. The caller holds p.mu.
func (p *Provider) addLocked(s *sandbox) {
	p.sandboxes[s.id] = s
	if s.place.Spec.Name != "" {
		p.idsByName[qualifiedName{s.place.Spec.Project, s.place.Spec.Name}] = s.id
	}
}

// releaseID reverts reserveID.
func (p *Provider) releaseID(s *sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deleteLocked(s)
}

// deleteLocked reverts addLocked. The caller holds p.mu.
func (p *Provider) deleteLocked(s *sandbox) {
	delete(p.sandboxes, s.id)
	delete(p.idsByName, qualifiedName{s.place.Spec.Project, s.place.Spec.Name})
}

// Get implements atoll.Provider.
func (p *Provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n, err := atoll.NormalizeID(id)
	if err != nil {
		return nil, atoll.E("get", id, atoll.ErrNotFound, err)
	}
	p.mu.Lock()
	s := p.sandboxes[n]
	p.mu.Unlock()
	if s == nil || !s.isVisible() {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	return s, nil
}

// Resolve implements atoll.Resolver.
func (p *Provider) Resolve(ctx context.Context, project, ref string) (string, error) {
	p.mu.Lock()
	s := p.sandboxes[p.idsByName[qualifiedName{project, ref}]]
	p.mu.Unlock()
	if s == nil || !s.isVisible() {
		return "", atoll.E("get", ref, atoll.ErrNotFound, nil)
	}
	return s.id, nil
}

// List implements atoll.Provider.
func (p *Provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return p.listStatuses(f), nil
}

func (p *Provider) listStatuses(f atoll.Filter) []atoll.Status {
	list := []atoll.Status{}
	for _, s := range p.allSandboxes() {
		if st, ok := s.currentStatus(); ok && f.Match(st) {
			list = append(list, st)
		}
	}
	slices.SortFunc(list, func(a, b atoll.Status) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return list
}

func (p *Provider) allSandboxes() []*sandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	boxes := make([]*sandbox, 0, len(p.sandboxes))
	for _, s := range p.sandboxes {
		boxes = append(boxes, s)
	}
	return boxes
}

// Watch implements atoll.Provider.
func (p *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] { return p.hub.Watch(ctx) }

// Close implements atoll.Provider. Processes cannot outlive this program, so Close ends them and stops
// their sandboxes.
func (p *Provider) Close() error {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed {
		return nil
	}
	p.hub.Close()
	var all sync.WaitGroup
	for _, s := range p.allSandboxes() {
		all.Go(s.shutDown)
	}
	all.Wait()
	p.work.Wait()
	return nil
}

func (p *Provider) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// runTracked runs f in a goroutine that Close waits for. It does nothing if the provider is closed.
func (p *Provider) runTracked(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.work.Go(f)
	}
}

// scheduleTracked calls f after d, in a goroutine that Close waits for.
func (p *Provider) scheduleTracked(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(max(d, 0), func() { p.runTracked(f) })
}

// dialLoopback connects to port on the loopback address, which the processes of all sandboxes share.
func dialLoopback(ctx context.Context, id string, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, atoll.Errorf("dial", id, atoll.ErrInvalid, "port %d: must be within 1..65535", port)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, atoll.E("dial", id, atoll.ErrUnavailable, err)
	}
	return c, nil
}

var (
	_ atoll.Provider       = (*Provider)(nil)
	_ atoll.Resolver       = (*Provider)(nil)
	_ atoll.VolumeStore    = (*Provider)(nil)
	_ atoll.ProjectRemover = (*Provider)(nil)
)
