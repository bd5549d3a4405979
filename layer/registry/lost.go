package registry

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

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
	return nil, atoll.Errorf(op, s.id, atoll.ErrStopped, "%s", s.l.lostStatus(ctx, r).Reason)
}

// lostStatus is that of a lost sandbox. One that a program is just making again is
// on its way.
func (l *Provider) lostStatus(ctx context.Context, r *store.Record) atoll.Status {
	st := atoll.Status{ID: r.ID, Provider: r.Provider, Spec: r.Spec, State: atoll.StateFailed, Created: r.Created, Caps: l.Info().Caps}
	alive := false
	if r.Reason == "" {
		alive, _ = l.store.Alive(ctx, r.Holder) // if that is not known, its time will come
	}
	switch {
	case alive:
		st.State, st.Reason = atoll.StateCreating, "it is being rebuilt"
	case r.Reason == "":
		st.Reason = "its rebuild was cut short: start it to go on, its data is kept"
	default:
		st.Reason = "its rebuild failed: " + r.Reason + ": start it to try again, its data is kept"
	}
	return st
}

// allLost are the lost sandboxes but for those that are known to be there, and
// those that have been made again meanwhile.
func (l *Provider) allLost(ctx context.Context, known map[string]bool) []atoll.Status {
	records, err := l.store.InState(ctx, l.scope, store.Rebuilding)
	if err != nil && ctx.Err() == nil {
		l.log.Warn("list: sandboxes whose rebuild failed are not known", "err", err)
	}
	var all []atoll.Status
	for _, r := range records {
		if known[r.ID] {
			continue
		}
		st, err := l.wrap(&lost{l, r.ID}).Status(ctx)
		if err == nil {
			all = append(all, st)
		}
	}
	return all
}

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
	return s.l.lostStatus(ctx, r), nil
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

var _ atoll.Sandbox = (*lost)(nil)
