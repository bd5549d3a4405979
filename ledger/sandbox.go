package ledger

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/store"
)

func (l *Provider) wrap(sb atoll.Sandbox) atoll.Sandbox {
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, l}
}

type sandbox struct {
	atoll.SandboxLayer
	l *Provider
}

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.SandboxLayer.Status(ctx)
	st.Spec.Env = unmarked(st.Spec.Env)
	return st, err
}

// Exec implements atoll.Sandbox. While the sandbox is being rebuilt, it waits.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	leave, waited, err := s.l.gate.enter(ctx, s.ID())
	if err != nil {
		return nil, err
	}
	defer leave()
	sb := s.Sandbox
	if waited { // what this is a handle of may have been removed
		if sb, err = s.l.ProviderLayer.Get(ctx, s.ID()); err != nil {
			return nil, err
		}
	}
	return sb.Exec(ctx, cmd)
}

// Snapshot implements atoll.Snapshotter.
func (s *sandbox) Snapshot(ctx context.Context) (atoll.Snapshot, error) {
	snap, err := s.SandboxLayer.Snapshot(ctx)
	snap.Spec.Env = unmarked(snap.Spec.Env)
	return snap, err
}

// A lost sandbox is one whose rebuild failed after it had been removed, for as
// long as that is so. Its data volume is there, and what it is to be made from
// is written down.
type lost struct {
	l  *Provider
	id string
}

func (l *Provider) isLost(r *store.Record) bool {
	return r.State == store.Rebuilding && r.Scope == l.scope
}

// found is the sandbox, if it has been made again meanwhile, else ErrStopped.
func (s *lost) found(ctx context.Context, op string) (atoll.Sandbox, error) {
	sb, err := s.l.ProviderLayer.Get(ctx, s.id)
	if atoll.KindOf(err) != atoll.ErrNotFound {
		return sb, err
	}
	r, err := s.l.store.Find(ctx, s.id)
	if err != nil {
		return nil, err
	}
	if !s.l.isLost(r) {
		return nil, atoll.E(op, s.id, atoll.ErrNotFound, nil)
	}
	return nil, atoll.Errorf(op, s.id, atoll.ErrStopped, lostReason)
}

const lostReason = "it was removed to be rebuilt, and could not be made again: start it to try once more; its data volume is kept"

// ID implements atoll.Sandbox.
func (s *lost) ID() string { return s.id }

// Status implements atoll.Sandbox.
func (s *lost) Status(ctx context.Context) (atoll.Status, error) {
	sb, err := s.found(ctx, "status")
	if err == nil {
		return sb.Status(ctx)
	}
	if atoll.KindOf(err) != atoll.ErrStopped {
		return atoll.Status{}, err
	}
	r, err := s.l.store.Find(ctx, s.id)
	if err != nil {
		return atoll.Status{}, err
	}
	return atoll.Status{
		ID: r.ID, Provider: r.Provider, Spec: r.Spec, State: atoll.StateFailed, Reason: lostReason,
		Created: r.Created, Caps: s.l.Info().Caps,
	}, nil
}

// Start implements atoll.Sandbox: it makes the sandbox again.
func (s *lost) Start(ctx context.Context) error {
	unlock, err := s.l.gate.lock(ctx, "start", s.id)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := s.l.store.Find(ctx, s.id)
	if err != nil {
		return err
	}
	if _, err := s.l.settle(ctx, r, false); err != nil {
		return err
	}
	sb, err := s.found(ctx, "start")
	if err != nil {
		return err
	}
	return sb.Start(ctx)
}

// Stop implements atoll.Sandbox.
func (s *lost) Stop(ctx context.Context, grace time.Duration) error {
	sb, err := s.found(ctx, "stop")
	if atoll.KindOf(err) == atoll.ErrStopped {
		return nil
	}
	if err != nil {
		return err
	}
	return sb.Stop(ctx, grace)
}

// Exec implements atoll.Sandbox.
func (s *lost) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	sb, err := s.found(ctx, "exec")
	if err != nil {
		return nil, err
	}
	return sb.Exec(ctx, cmd)
}

// Process implements atoll.Sandbox.
func (s *lost) Process(ctx context.Context, id string) (atoll.Process, error) {
	sb, err := s.found(ctx, "process")
	if err != nil {
		return nil, err
	}
	return sb.Process(ctx, id)
}

// Remove implements atoll.Sandbox. The layer forgets what is written down.
func (s *lost) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	sb, err := s.l.ProviderLayer.Get(ctx, s.id)
	if err == nil {
		return sb.Remove(ctx, opts...)
	}
	if atoll.KindOf(err) != atoll.ErrNotFound || !atoll.RemoveOpts(opts...).Volumes {
		return notFoundIsFine(err)
	}
	return s.l.removeData(ctx, s.id)
}

func notFoundIsFine(err error) error {
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	return err
}

var (
	_ atoll.Sandbox     = (*lost)(nil)
	_ atoll.Sandbox     = (*sandbox)(nil)
	_ atoll.Snapshotter = (*sandbox)(nil)
)
