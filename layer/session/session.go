// Package session is a layer with sessions. A session binds a scope, such as a
// workflow's run, to one sandbox, which all callers with that scope share. It ends
// with the scope.
//
// A store records the sandbox of each session, from before its creation until after
// its removal. If a program dies, the next one finds the session, or completes its
// end.
//
// The idle timeout and the maximum lifetime of a session are those of its sandbox.
// The provider enforces them, without this program. If the provider cannot tell
// whether a sandbox is idle, the layer enforces the idle timeout.
package session

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/keymutex"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Options are the defaults of sessions, and the configuration of the layer.
type Options struct {
	IdleTimeout atoll.Duration // 0 means session.DefaultIdleTimeout
	MaxLifetime atoll.Duration // 0 means session.DefaultMaxLifetime

	// Server declares a long-running program, which maintains sessions from its
	// start. Other programs begin when they open a session.
	Server bool
	// Log receives errors that no call can return; nil discards them.
	Log *slog.Logger

	onStep     func(name string) // for tests: called after each step, with its name
	checkEvery time.Duration     // for tests: the interval between checks of all sessions
}

// A Provider is the layer.
type Provider struct {
	atoll.ProviderLayer
	store Store
	opts  Options
	log   *slog.Logger
	locks keymutex.Locks // by project and key of a session

	tracker useTracker
	wake    chan struct{} // asks maintenance for an earlier check; capacity 1

	ctx          context.Context // ends with Close
	cancel       context.CancelFunc
	maintainOnce sync.Once
	closeOnce    sync.Once
	background   sync.WaitGroup
}

// New returns p with sessions, which it records in s. The layer owns s, and opens
// it only when needed or with Options.Server. Close closes p and s; it does not end
// sessions.
func New(p atoll.Provider, s Store, opts Options) *Provider {
	opts.IdleTimeout = cmp.Or(opts.IdleTimeout, DefaultIdleTimeout)
	opts.MaxLifetime = cmp.Or(opts.MaxLifetime, DefaultMaxLifetime)
	opts.checkEvery = cmp.Or(opts.checkEvery, time.Minute)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.onStep == nil {
		opts.onStep = func(string) {}
	}
	l := &Provider{ProviderLayer: atoll.ProviderLayer{Provider: p}, store: s, opts: opts, log: opts.Log, wake: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if opts.Server {
		l.startMaintenance()
	}
	return l
}

// Close implements atoll.Provider.
func (l *Provider) Close() (err error) {
	l.closeOnce.Do(func() {
		l.cancel()
		l.maintainOnce.Do(func() {}) // from now on it does not start
		l.background.Wait()
		err = errors.Join(l.ProviderLayer.Close(), l.store.Close())
	})
	return err
}

// Info implements atoll.Provider.
func (l *Provider) Info() atoll.Info {
	info := l.ProviderLayer.Provider.Info()
	info.Caps.Sessions = true
	return info
}

// Members implements atoll.Combiner.
func (l *Provider) Members(ctx context.Context) ([]atoll.Member, error) {
	all, err := atoll.Members(ctx, l.Provider)
	for i := range all {
		all[i].Caps.Sessions = true
	}
	return all, err
}

// Create implements atoll.Provider.
func (l *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	return l.wrapSandbox(l.Provider.Create(ctx, spec))
}

// Get implements atoll.Provider.
func (l *Provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	return l.wrapSandbox(l.Provider.Get(ctx, id))
}

// wrapSandbox returns sb with this layer around it, or err.
func (l *Provider) wrapSandbox(sb atoll.Sandbox, err error) (atoll.Sandbox, error) {
	if err != nil {
		return nil, err
	}
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, l}, nil
}

// List implements atoll.Provider.
func (l *Provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	all, err := l.Provider.List(ctx, f)
	for i := range all {
		all[i].Caps.Sessions = true
	}
	return all, err
}

// Watch implements atoll.Provider.
func (l *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		for ev, err := range l.Provider.Watch(ctx) {
			ev.Status.Caps.Sessions = ev.Type == atoll.EventState
			if !yield(ev, err) {
				return
			}
		}
	}
}

// RemoveProject implements atoll.ProjectRemover.
func (l *Provider) RemoveProject(ctx context.Context, project string) error {
	if !atoll.ValidName(project) { // "" would list all projects
		return atoll.Errorf("remove project", project, atoll.ErrInvalid, "project %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", project)
	}
	all, err := l.store.Sessions(ctx, project)
	if err != nil {
		return err
	}
	for _, rec := range all {
		if err := l.CloseSession(ctx, rec.Spec.Project, rec.Spec.Scope.Key()); err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
			return err
		}
	}
	return atoll.RemoveProject(ctx, l.Provider, project)
}

// Sessions implements session.Manager.
func (l *Provider) Sessions(ctx context.Context, project string) ([]Session, error) {
	records, err := l.store.Sessions(ctx, project)
	if err != nil || len(records) == 0 {
		return nil, err
	}
	sandboxes, err := l.Provider.List(ctx, atoll.Filter{Project: project})
	if err != nil {
		return nil, err
	}
	byID := make(map[string]*atoll.Status, len(sandboxes))
	for i := range sandboxes {
		byID[sandboxes[i].ID] = &sandboxes[i]
	}
	var all []Session
	for _, rec := range records {
		st := byID[rec.Sandbox]
		switch {
		case rec.State == StateGone && st == nil:
			continue
		case rec.State == StateGone: // the sandbox is back, for example with its engine
			rec.State = StateOpen
		case rec.State == StateOpen && st == nil:
			gone, err := l.markGone(ctx, rec)
			if err != nil {
				return nil, err
			}
			if gone {
				continue
			}
		}
		all = append(all, describeSession(rec, st))
	}
	return all, nil
}

// describeSession returns the Session of a record and its sandbox's status; st is
// nil if that is unknown.
func describeSession(rec *Record, st *atoll.Status) Session {
	s := Session{
		Key: rec.Spec.Scope.Key(), Project: rec.Spec.Project, Scope: rec.Spec.Scope, Workflow: rec.Spec.Workflow,
		State: rec.State, Problem: rec.Problem, Sandbox: rec.Sandbox, Spec: rec.Spec.Sandbox,
		Created: rec.Created, Opened: rec.Opened, IdleTimeout: rec.Spec.IdleTimeout,
	}
	if st != nil {
		s.Expires = st.Expires
	}
	return s
}

// markGone records that the sandbox of a session is gone, if the provider reports
// ErrNotFound. It returns whether it is gone.
func (l *Provider) markGone(ctx context.Context, rec *Record) (gone bool, err error) {
	_, err = l.Provider.Get(ctx, rec.Sandbox)
	if atoll.KindOf(err) != atoll.ErrNotFound {
		return false, nil // in creation, or the provider does not answer
	}
	other, err := l.heldByOther(ctx, rec)
	if err != nil || other {
		return false, err
	}
	for {
		last := *rec
		err = l.dropRecord(ctx, &last, true)
		if !errors.Is(err, store.ErrChanged) {
			return err == nil, err
		}
		now, err := l.store.FindSession(ctx, rec.Spec.Project, rec.Spec.Scope.Key())
		switch {
		case atoll.KindOf(err) == atoll.ErrNotExist:
			return true, nil // another program has deleted the record
		case err != nil || now.Sandbox != rec.Sandbox:
			return false, err
		case now.State != rec.State:
			return now.State == StateGone, nil
		}
		rec = now // only its time of use has changed
	}
}

// heldByOther reports whether another running program holds the record of a
// session, or has its sandbox, which ends with that program.
func (l *Provider) heldByOther(ctx context.Context, rec *Record) (bool, error) {
	if rec.Holder == "" {
		return false, nil
	}
	me, err := l.store.Holder(ctx)
	if err != nil || rec.Holder == me {
		return false, err
	}
	return l.store.IsAlive(ctx, rec.Holder)
}

var (
	_ Manager              = (*Provider)(nil)
	_ atoll.ProjectRemover = (*Provider)(nil)
)
