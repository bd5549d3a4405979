// Package session is a layer that keeps sessions: each binds a scope, such as a
// workflow's run, to a sandbox of its own, which all who name that scope share, and
// which ends with it.
//
// Which sandbox a session has is in a store, written down before the sandbox is
// made and until it is removed: however a program ends, the next one finds the
// session, or finishes its end.
//
// A session's idle timeout and lifetime are those of its sandbox, which the
// provider knows best, and keeps to without this program. Where a provider cannot
// tell whether a sandbox is idle, the layer does.
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

// Options are what sessions get that say nothing of it.
type Options struct {
	IdleTimeout atoll.Duration // 0 means session.DefaultIdleTimeout
	MaxLifetime atoll.Duration // 0 means session.DefaultMaxLifetime

	// Server says that the program is there for long, and looks after sessions
	// from its start. Others do once they have opened one.
	Server bool
	// Log is told of what cannot be returned; nil discards.
	Log *slog.Logger

	step func(name string) // for tests: called after each step, with its name
	look time.Duration     // for tests: how often sessions are looked after
}

// A Provider is the layer.
type Provider struct {
	atoll.ProviderLayer
	store Store
	opts  Options
	log   *slog.Logger
	locks keymutex.Locks // of sessions

	uses uses
	soon chan struct{} // something is to be looked at sooner; capacity 1

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	caring  sync.Once
	closing sync.Once
	work    sync.WaitGroup
}

// New returns p with sessions, which are written down in s. It does not open s
// unless it is for a server. Its Close closes p and s; the sessions stay.
func New(p atoll.Provider, s Store, opts Options) *Provider {
	opts.IdleTimeout = cmp.Or(opts.IdleTimeout, DefaultIdleTimeout)
	opts.MaxLifetime = cmp.Or(opts.MaxLifetime, DefaultMaxLifetime)
	opts.look = cmp.Or(opts.look, time.Minute)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.step == nil {
		opts.step = func(string) {}
	}
	l := &Provider{ProviderLayer: atoll.ProviderLayer{Provider: p}, store: s, opts: opts, log: opts.Log, soon: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if opts.Server {
		l.care()
	}
	return l
}

// Close implements atoll.Provider.
func (l *Provider) Close() (err error) {
	l.closing.Do(func() {
		l.cancel()
		l.caring.Do(func() {}) // nobody begins it any more
		l.work.Wait()
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
	return l.wrap(l.Provider.Create(ctx, spec))
}

// Get implements atoll.Provider.
func (l *Provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	return l.wrap(l.Provider.Get(ctx, id))
}

func (l *Provider) wrap(sb atoll.Sandbox, err error) (atoll.Sandbox, error) {
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
	if !atoll.ValidName(project) { // "" is all of them
		return atoll.Errorf("remove project", project, atoll.ErrInvalid, "no valid project name")
	}
	all, err := l.store.Sessions(ctx, project)
	if err != nil {
		return err
	}
	for _, x := range all {
		if err := l.CloseSession(ctx, x.Spec.Project, x.Spec.Scope.Key()); err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
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
	for _, x := range records {
		st := byID[x.Sandbox]
		switch {
		case x.State == StateGone && st == nil:
			continue
		case x.State == StateGone: // it is back, as its backend is
			x.State = StateOpen
		case x.State == StateOpen && st == nil:
			gone, err := l.forget(ctx, x)
			if err != nil {
				return nil, err
			}
			if gone {
				continue
			}
		}
		all = append(all, session(x, st))
	}
	return all, nil
}

// session is what x says, and what st does of its sandbox, which is nil where that
// is not known.
func session(x *Record, st *atoll.Status) Session {
	s := Session{
		Key: x.Spec.Scope.Key(), Project: x.Spec.Project, Scope: x.Spec.Scope, Workflow: x.Spec.Workflow,
		State: x.State, Problem: x.Problem, Sandbox: x.Sandbox, Spec: x.Spec.Sandbox,
		Created: x.Created, Opened: x.Opened, IdleTimeout: x.Spec.IdleTimeout,
	}
	if st != nil {
		s.Expires = st.Expires
	}
	return s
}

// forget writes down that the sandbox of a session is gone: what is proven so.
func (l *Provider) forget(ctx context.Context, x *Record) (gone bool, err error) {
	_, err = l.Provider.Get(ctx, x.Sandbox)
	if atoll.KindOf(err) != atoll.ErrNotFound {
		return false, nil // it may be in its making, or its provider does not answer
	}
	other, err := l.heldByOther(ctx, x)
	if err != nil || other {
		return false, err
	}
	for {
		last := *x
		err = l.drop(ctx, &last, true)
		if !errors.Is(err, store.ErrChanged) {
			return err == nil, err
		}
		now, err := l.store.FindSession(ctx, x.Spec.Project, x.Spec.Scope.Key())
		switch {
		case atoll.KindOf(err) == atoll.ErrNotExist:
			return true, nil // somebody else was faster
		case err != nil || now.Sandbox != x.Sandbox:
			return false, err
		case now.State != x.State:
			return now.State == StateGone, nil
		}
		x = now // when it was used was written down
	}
}

// heldByOther reports whether another program that runs works on a session, or has
// its sandbox, which ends with that program.
func (l *Provider) heldByOther(ctx context.Context, x *Record) (bool, error) {
	if x.Holder == "" {
		return false, nil
	}
	me, err := l.store.Holder(ctx)
	if err != nil || x.Holder == me {
		return false, err
	}
	return l.store.Alive(ctx, x.Holder)
}

var (
	_ Manager              = (*Provider)(nil)
	_ atoll.ProjectRemover = (*Provider)(nil)
)
