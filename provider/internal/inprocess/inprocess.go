// Package inprocess implements a provider whose sandboxes are directories and processes of
// this program: ids and names, states, the main process, expiry, volumes, files and the
// records by which another program finds them again. A Backend starts the processes.
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

// A Backend runs the processes of sandboxes. All methods may be called at once
// from many goroutines.
type Backend interface {
	// Start starts cmd, whose Args are not empty, with io as its stdio; see
	// process.Table.Start. Kinds: ErrCommandNotFound, ErrExecFailed.
	Start(ctx context.Context, place *Place, cmd *atoll.Command, io process.Stdio) (process.Handle, error)
	// Shell is the shell of a terminal for which no command was given.
	Shell(place *Place, cmd *atoll.Command) string
	// Sweep ends all that still runs of a sandbox, also what a program that
	// crashed left running.
	Sweep(id string) error
	// Removed is told that a sandbox is gone.
	Removed(id string)
	// OwnUser reports whether user is the one that all processes have.
	OwnUser(user string) bool
}

// Options are what a provider is made of.
type Options struct {
	Info    atoll.Info
	Image   string // of sandboxes that name none; without Caps.Images the only one there is
	Backend Backend
	Dir     string       // of this provider alone; made if missing
	Address string       // Status.Address of every running sandbox
	Log     *slog.Logger // nil discards

	// Step, when not nil, is asked before each step of making and of starting a
	// sandbox, and fails it with its error: for tests.
	Step func(name string) error
}

// A Provider is an atoll.Provider.
type Provider struct {
	opts    Options
	log     *slog.Logger
	volumes volume.Store
	hub     *watchhub.Hub
	work    sync.WaitGroup

	mu     sync.Mutex
	closed bool
	boxes  map[string]*box
	names  map[name]string // to ids
}

// A name is unique in its project.
type name struct{ project, name string }

// New finds the sandboxes of earlier programs in opts.Dir. Those that were
// running when their program died are failed; what it left running is ended.
// Those of a program that still lives are left alone.
func New(opts Options) (*Provider, error) {
	p := &Provider{opts: opts, log: opts.Log, boxes: map[string]*box{}, names: map[name]string{}}
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
	p.hub = watchhub.New(func() ([]atoll.Status, error) { return p.list(atoll.Filter{}), nil })
	if err := p.load(); err != nil {
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
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	spec, err := spec.MadeBy(p.opts.Info.Name)
	if err != nil {
		return nil, err
	}
	if err := p.refuse(spec); err != nil {
		return nil, err
	}
	b, err := p.reserve(spec)
	if err != nil {
		return nil, err
	}
	if err := b.make(ctx); err != nil {
		p.forget(b)
		return nil, err
	}
	return b, nil
}

// step is where a test lets something fail.
func (p *Provider) step(name string) error {
	if p.opts.Step == nil {
		return nil
	}
	return p.opts.Step(name)
}

// reserve takes the id and name of spec.
func (p *Provider) reserve(spec *atoll.Spec) (*box, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrUnavailable, "the provider is closed")
	}
	if _, taken := p.boxes[spec.ID]; taken {
		return nil, atoll.Errorf("create", spec.ID, atoll.ErrAlreadyExists, "a sandbox with this id is there already")
	}
	if id, taken := p.names[name{spec.Project, spec.Name}]; taken {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrAlreadyExists, "the name is that of sandbox %s", id)
	}
	b := newBox(p, spec)
	p.enter(b)
	return b, nil
}

// enter makes b known; p.mu is held.
func (p *Provider) enter(b *box) {
	p.boxes[b.id] = b
	if b.place.Spec.Name != "" {
		p.names[name{b.place.Spec.Project, b.place.Spec.Name}] = b.id
	}
}

// forget takes back reserve.
func (p *Provider) forget(b *box) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave(b)
}

// leave takes back enter; p.mu is held.
func (p *Provider) leave(b *box) {
	delete(p.boxes, b.id)
	delete(p.names, name{b.place.Spec.Project, b.place.Spec.Name})
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
	b := p.boxes[n]
	p.mu.Unlock()
	if b == nil || !b.visible() {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	return b, nil
}

// Resolve implements atoll.Resolver.
func (p *Provider) Resolve(ctx context.Context, project, ref string) (string, error) {
	p.mu.Lock()
	b := p.boxes[p.names[name{project, ref}]]
	p.mu.Unlock()
	if b == nil || !b.visible() {
		return "", atoll.E("get", ref, atoll.ErrNotFound, nil)
	}
	return b.id, nil
}

// List implements atoll.Provider.
func (p *Provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return p.list(f), nil
}

func (p *Provider) list(f atoll.Filter) []atoll.Status {
	list := []atoll.Status{}
	for _, b := range p.all() {
		if st, ok := b.status(); ok && f.Match(st) {
			list = append(list, st)
		}
	}
	slices.SortFunc(list, func(a, b atoll.Status) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return list
}

func (p *Provider) all() []*box {
	p.mu.Lock()
	defer p.mu.Unlock()
	boxes := make([]*box, 0, len(p.boxes))
	for _, b := range p.boxes {
		boxes = append(boxes, b)
	}
	return boxes
}

// Watch implements atoll.Provider.
func (p *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] { return p.hub.Watch(ctx) }

// Close implements atoll.Provider. Processes cannot outlive this program: they
// are ended, and their sandboxes are stopped.
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
	for _, b := range p.all() {
		all.Go(b.close)
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

// spawn runs f in a goroutine that Close waits for, unless the provider is
// closed.
func (p *Provider) spawn(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.work.Go(f)
	}
}

// after calls f, as spawn does, when d is over.
func (p *Provider) after(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(max(d, 0), func() { p.spawn(f) })
}

// dial connects to the loopback address that all processes share.
func dial(ctx context.Context, id string, port int) (net.Conn, error) {
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
