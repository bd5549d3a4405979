package plugin

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/watchhub"
)

// A Backend creates sandboxes and starts processes in them. [NewProvider] returns a provider with the
// sandboxes of a Backend. Its methods may be called concurrently, but CreateSandbox, StopSandbox and
// RemoveSandbox not for the same sandbox. Errors need no op and no id; those that are no [atoll.Error]
// are internal errors.
type Backend interface {
	// CreateSandbox creates the sandbox spec.ID and its work directory. No process runs in it yet. spec
	// is complete, valid and within the provider's caps, and spec.Workdir has no "..": CreateSandbox must
	// not change it. If it fails, the provider calls RemoveSandbox.
	CreateSandbox(ctx context.Context, spec *atoll.Spec) error
	// StartProcess starts a command with the given stdio. cmd.Args is not empty, cmd.Dir is an absolute
	// path in the sandbox, cmd.Env has the variables of the spec, too, and cmd.OpenStdin is false if the
	// process has no input. cmd has no streams. The provider closes its own copies of the files when
	// StartProcess returns, and enforces cmd.Timeout. Kinds: ErrCommandNotFound, ErrExecFailed,
	// ErrNotFound (the backend has lost the sandbox, which then fails).
	StartProcess(ctx context.Context, spec *atoll.Spec, cmd *atoll.Command, stdio Stdio) (Process, error)
	// StopSandbox kills every process in the sandbox. It does nothing if the sandbox does not exist.
	StopSandbox(ctx context.Context, id string) error
	// RemoveSandbox deletes the sandbox, in which no process runs. It does nothing if the sandbox does
	// not exist.
	RemoveSandbox(ctx context.Context, id string) error
}

// Stdio has a process's ends of its three streams. If the process has a terminal, all three are the
// same file.
type Stdio struct{ Stdin, Stdout, Stderr *os.File }

// A Process is a process of a Backend.
type Process interface {
	// Wait blocks until the process itself has ended. The provider calls it once.
	Wait() atoll.Exit
	// Signal sends sig to the process; it sends SIGKILL to all descendants, too. Errors:
	// os.ErrProcessDone.
	Signal(sig atoll.Signal) error
}

const (
	changeTimeout    = 5 * time.Minute // limit of a change that a backend makes to a sandbox
	removeRetryDelay = time.Minute     // between two attempts to remove a sandbox whose time has passed
)

// A backendProvider is the provider of a Backend.
type backendProvider struct {
	info    atoll.Info
	backend Backend
	log     *slog.Logger
	hub     *watchhub.Hub
	work    sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	sandboxes map[string]*sandbox // also those that are being created
	names     map[sandboxName]string
}

// A sandboxName is unique.
type sandboxName struct{ project, name string }

// NewProvider returns a provider with the sandboxes of b. The provider has their ids and names, states,
// time limits, events, main processes and the output of processes; it checks specs and commands, and
// refuses what info.Caps leave out. It sets Caps.Extend. Close removes all sandboxes. log gets the errors
// that no method returns; nil discards them. Kinds: ErrInvalid (info has a cap that needs more than a
// Backend).
func NewProvider(info atoll.Info, b Backend, log *slog.Logger) (atoll.Provider, error) {
	if cap := unavailableCap(info.Caps); cap != "" {
		return nil, atoll.Errorf("open", info.Name, atoll.ErrInvalid, "cap %s: a backend cannot have it: serve the whole API", cap)
	}
	info.Caps.Extend = true
	info.Caps.Durable = cmp.Or(info.Caps.Durable, atoll.DurableNone)
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &backendProvider{info: info, backend: b, log: log, sandboxes: map[string]*sandbox{}, names: map[sandboxName]string{}}
	p.hub = watchhub.New(func() ([]atoll.Status, error) { return p.listStatuses(atoll.Filter{}), nil })
	return p, nil
}

// unavailableCap returns the name of a cap that no provider of a Backend has; "" if c has none of them.
func unavailableCap(c atoll.Caps) string {
	var names []string
	for name, has := range map[string]bool{
		"survives": c.Survives, "reattach": c.Reattach, "idle_stop": c.IdleStop, "files": c.Files, "dial": c.Dial, "pause": c.Pause,
		"snapshot": c.Snapshot, "durable_exec": c.DurableExec, "usage": c.Usage, "image_store": c.ImageStore, "volumes": c.Volumes, "volume_locks": c.VolumeLocks, "workspaces": c.Workspaces,
		"sessions": c.Sessions, "publish": c.Publish, "cache": c.Cache, "refusals": c.Refusals,
	} {
		if has {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return slices.Min(names)
}

// Info implements atoll.Provider.
func (p *backendProvider) Info() atoll.Info { return p.info }

// Create implements atoll.Provider.
func (p *backendProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	spec, err := spec.Complete(p.info.Name)
	if err != nil {
		return nil, err
	}
	if err := spec.CheckCaps(p.info.Name, p.info.Caps, nil); err != nil {
		return nil, err
	}
	s, err := p.reserveSandbox(spec)
	if err != nil {
		return nil, err
	}
	defer s.releaseLock()
	if err := s.createSandbox(ctx); err != nil {
		s.undoCreate(ctx)
		return nil, completeError("create", spec.ID, err)
	}
	return s, nil
}

// unsupportedError returns the error for a feature that the provider does not have.
func (p *backendProvider) unsupportedError(op, id, feature string) error {
	return atoll.Errorf(op, id, atoll.ErrUnsupported, "provider %s has no %s", p.info.Name, feature)
}

// reserveSandbox takes the id and the name of spec. It returns a sandbox that the caller has acquired.
func (p *backendProvider) reserveSandbox(spec *atoll.Spec) (*sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrUnavailable, "the provider is closed")
	}
	if p.sandboxes[spec.ID] != nil {
		return nil, atoll.Errorf("create", spec.ID, atoll.ErrAlreadyExists, "another sandbox has this id")
	}
	name := sandboxName{spec.Project, spec.Name}
	if id := p.names[name]; id != "" {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrAlreadyExists, "sandbox %s has this name", id)
	}
	s := newSandbox(p, spec)
	p.sandboxes[s.id] = s
	if spec.Name != "" {
		p.names[name] = s.id
	}
	return s, nil
}

// forgetSandbox undoes reserveSandbox; p.mu is held.
func (p *backendProvider) forgetSandbox(s *sandbox) {
	delete(p.sandboxes, s.id)
	delete(p.names, sandboxName{s.spec.Project, s.spec.Name})
}

// Get implements atoll.Provider.
func (p *backendProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	normal, err := atoll.NormalizeID(id)
	if err != nil {
		return nil, atoll.E("get", id, atoll.ErrNotFound, err)
	}
	p.mu.Lock()
	s := p.sandboxes[normal]
	p.mu.Unlock()
	if s == nil || !s.isPresent() {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	return s, nil
}

// List implements atoll.Provider.
func (p *backendProvider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return p.listStatuses(f), nil
}

// listStatuses returns the statuses that f selects, oldest first.
func (p *backendProvider) listStatuses(f atoll.Filter) []atoll.Status {
	list := []atoll.Status{}
	for _, s := range p.listSandboxes() {
		if st, ok := s.currentStatus(); ok && f.Match(st) {
			list = append(list, st)
		}
	}
	slices.SortFunc(list, func(a, b atoll.Status) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// listSandboxes returns all sandboxes in no order.
func (p *backendProvider) listSandboxes() []*sandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*sandbox, 0, len(p.sandboxes))
	for _, s := range p.sandboxes {
		list = append(list, s)
	}
	return list
}

// Watch implements atoll.Provider.
func (p *backendProvider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return p.hub.Watch(ctx)
}

// Close implements atoll.Provider. It removes all sandboxes.
func (p *backendProvider) Close() error {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed {
		return nil
	}
	p.hub.Close()
	all := p.listSandboxes()
	errs := make([]error, len(all))
	var removals sync.WaitGroup
	for i, s := range all {
		removals.Go(func() {
			s.busy <- struct{}{}
			defer s.releaseLock()
			errs[i] = s.removeSandbox(context.Background())
		})
	}
	removals.Wait()
	p.work.Wait()
	return errors.Join(errs...)
}

// isClosed reports whether Close has been called.
func (p *backendProvider) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// spawnWork calls f in a goroutine for which Close waits. It does nothing if the provider is closed.
func (p *backendProvider) spawnWork(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.work.Go(f)
	}
}

// completeError gives err an op, an id and a kind if it has none. It returns the error of a context
// unchanged.
func completeError(op, id string, err error) error {
	if err == nil || err == context.Canceled || err == context.DeadlineExceeded {
		return err
	}
	if e, ok := err.(*atoll.Error); ok {
		if e.Op != "" && e.ID != "" {
			return err
		}
		return &atoll.Error{Op: cmp.Or(e.Op, op), ID: cmp.Or(e.ID, id), Kind: e.Kind, Err: e.Err}
	}
	return atoll.E(op, id, atoll.KindOf(err), err)
}

var _ atoll.Provider = (*backendProvider)(nil)
