package remote

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
)

// A Sandbox is a handle: each call looks up the sandbox's state.
type Sandbox[O any] struct {
	guestproc.Sandbox
	e  *Engine[O]
	id string
}

// NewHandle returns the handle of the sandbox with that id, whether it exists or not.
func (e *Engine[O]) NewHandle(id string) *Sandbox[O] {
	s := &Sandbox[O]{e: e, id: id}
	s.Sandbox = guestproc.Sandbox{
		Inside: func(ctx context.Context, op string) (atoll.Sandbox, error) { return e.ReachGuest(ctx, op, id) },
		Caretaker: func(ctx context.Context, op string, names []string) (atoll.Sandbox, error) {
			return e.reachCaretaker(ctx, op, id, names)
		},
		AwaitStop: func(ctx context.Context, op string) error { return e.checkRunning(ctx, op, id) },
		Ended:     s.endedMain,
	}
	return s
}

// ID implements atoll.Sandbox.
func (s *Sandbox[O]) ID() string { return s.id }

// Status implements atoll.Sandbox.
func (s *Sandbox[O]) Status(ctx context.Context) (atoll.Status, error) {
	r, err := s.e.backend.Find(ctx, "status", s.id, Known)
	if err != nil {
		return atoll.Status{}, err
	}
	return r.Status.Clone(), nil
}

// WithLockedRecord runs fn with the latest record of the sandbox, while this program holds the
// sandbox's lock.
func (s *Sandbox[O]) WithLockedRecord(ctx context.Context, op string, fn func(*Record[O]) error) error {
	if err := s.e.backend.Open(ctx, op); err != nil {
		return err
	}
	release, err := s.e.locks.Lock(ctx, s.id)
	if err != nil {
		return err
	}
	defer release()
	r, err := s.e.backend.Find(ctx, op, s.id, Latest)
	if err != nil {
		return err
	}
	return s.e.backend.WrapError(ctx, op, s.id, fn(r))
}

// endedMain returns the main process of an ended sandbox: how it ended, and the stored part of
// its output. Kinds: ErrNotExist (there was none, or it runs).
func (s *Sandbox[O]) endedMain(ctx context.Context) (atoll.Process, atoll.ProcessStatus, error) {
	r, err := s.e.backend.Find(ctx, "process", s.id, Known)
	if err != nil {
		return nil, atoll.ProcessStatus{}, err
	}
	if err := guestproc.MainEnded(&r.Status); err != nil {
		return nil, atoll.ProcessStatus{}, err
	}
	out, err := s.e.backend.Output(ctx, r)
	if err != nil {
		return nil, atoll.ProcessStatus{}, s.e.backend.WrapError(ctx, "process", s.id, err)
	}
	return guestproc.EndedMain(&r.Status, out.Stdout, out.Stderr)
}

// Extend implements atoll.Extender.
func (s *Sandbox[O]) Extend(ctx context.Context, ttl atoll.Duration) error {
	defer s.e.Sweeper.Wake()
	return s.WithLockedRecord(ctx, "extend", func(r *Record[O]) error {
		return s.e.backend.Update(ctx, r, func(n *Note) error {
			if n.Removing {
				return atoll.E("extend", s.id, atoll.ErrNotFound, nil)
			}
			now := r.Status
			now.Expires = n.Expires
			st, err := now.Extended(ttl, time.Now())
			n.Expires = st.Expires
			return err
		})
	})
}

var (
	_ atoll.Sandbox       = (*Sandbox[any])(nil)
	_ atoll.Dialer        = (*Sandbox[any])(nil)
	_ atoll.Extender      = (*Sandbox[any])(nil)
	_ atoll.Filer         = (*Sandbox[any])(nil)
	_ atoll.ProcessLister = (*Sandbox[any])(nil)
)
