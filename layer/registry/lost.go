package registry

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A lostSandbox is a sandbox whose rebuild failed after its removal. It still has
// its data volume and its record.
type lostSandbox struct {
	l  *Provider
	id string
}

// isLost reports whether r is the record of a sandbox whose rebuild has not ended.
func (l *Provider) isLost(r *store.Record) bool {
	return r.State == store.Rebuilding && r.Scope == l.scope
}

// findRebuilt returns the sandbox if another call has rebuilt it, or ErrStopped.
func (s *lostSandbox) findRebuilt(ctx context.Context, op string) (atoll.Sandbox, error) {
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

// lostStatus returns the status of a lost sandbox: creating if a live program
// rebuilds it, otherwise failed.
func (l *Provider) lostStatus(ctx context.Context, r *store.Record) atoll.Status {
	st := atoll.Status{ID: r.ID, Provider: r.Provider, Spec: r.Spec, State: atoll.StateFailed, Created: r.Created, Caps: l.Info().Caps}
	alive := false
	if r.Reason == "" {
		alive, _ = l.store.IsAlive(ctx, r.Holder) // if the lookup fails, assume that it is dead
	}
	switch {
	case alive:
		st.State, st.Reason = atoll.StateCreating, "rebuild in progress"
	case r.Reason == "":
		st.Reason = "rebuild interrupted; start the sandbox to continue (its data volume is intact)"
	default:
		st.Reason = "rebuild failed: " + r.Reason + "; start the sandbox to retry (its data volume is intact)"
	}
	return st
}

// listLost returns the statuses of lost sandboxes, except those in known and those
// rebuilt meanwhile.
func (l *Provider) listLost(ctx context.Context, known map[string]bool) []atoll.Status {
	records, err := l.store.InState(ctx, l.scope, store.Rebuilding)
	if err != nil && ctx.Err() == nil {
		l.log.Warn("list: cannot list sandboxes whose rebuild failed", "err", err)
	}
	var all []atoll.Status
	for _, r := range records {
		if known[r.ID] {
			continue
		}
		st, err := l.wrapSandbox(&lostSandbox{l, r.ID}).Status(ctx)
		if err == nil {
			all = append(all, st)
		}
	}
	return all
}

// ID implements atoll.Sandbox.
func (s *lostSandbox) ID() string { return s.id }

// Status implements atoll.Sandbox.
func (s *lostSandbox) Status(ctx context.Context) (atoll.Status, error) {
	sb, err := s.findRebuilt(ctx, "status")
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

// Start implements atoll.Sandbox: it creates the sandbox again.
func (s *lostSandbox) Start(ctx context.Context) error {
	unlock, err := s.l.locks.lockRecord(ctx, "start", s.id)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := s.l.store.Find(ctx, s.id)
	if err != nil {
		return err
	}
	if _, err := s.l.settleLocked(ctx, r, false); err != nil {
		return err
	}
	sb, err := s.findRebuilt(ctx, "start")
	if err != nil {
		return err
	}
	return sb.Start(ctx)
}

// Stop implements atoll.Sandbox.
func (s *lostSandbox) Stop(ctx context.Context, grace time.Duration) error {
	sb, err := s.findRebuilt(ctx, "stop")
	if atoll.KindOf(err) == atoll.ErrStopped {
		return nil
	}
	if err != nil {
		return err
	}
	return sb.Stop(ctx, grace)
}

// Exec implements atoll.Sandbox.
func (s *lostSandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	sb, err := s.findRebuilt(ctx, "exec")
	if err != nil {
		return nil, err
	}
	return sb.Exec(ctx, cmd)
}

// Process implements atoll.Sandbox.
func (s *lostSandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	sb, err := s.findRebuilt(ctx, "process")
	if err != nil {
		return nil, err
	}
	return sb.Process(ctx, id)
}

// Remove implements atoll.Sandbox. The layer deletes the record.
func (s *lostSandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	sb, err := s.l.ProviderLayer.Get(ctx, s.id)
	if err == nil {
		return sb.Remove(ctx, opts...)
	}
	if atoll.KindOf(err) != atoll.ErrNotFound || !atoll.ApplyRemoveOptions(opts...).Volumes {
		return ignoreNotFound(err)
	}
	return s.l.removeData(ctx, s.id)
}

var _ atoll.Sandbox = (*lostSandbox)(nil)
