package modal

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
)

// A sandbox is a handle: each call looks up the sandbox's state.
type sandbox struct {
	guestproc.Sandbox
	p  *Provider
	id string
}

// newHandle returns the handle of the sandbox with that id.
func (p *Provider) newHandle(id string) *sandbox {
	s := &sandbox{p: p, id: id}
	s.Sandbox = guestproc.Sandbox{
		Inside: func(ctx context.Context, op string) (atoll.Sandbox, error) { return p.reachGuest(ctx, op, id) },
		Caretaker: func(ctx context.Context, op string, names []string) (atoll.Sandbox, error) {
			return p.reachCaretaker(ctx, op, id, names)
		},
		Ends:  func(ctx context.Context, op string) error { return p.checkRunning(ctx, op, id) },
		Ended: s.endedMain,
	}
	return s
}

// ID implements atoll.Sandbox.
func (s *sandbox) ID() string { return s.id }

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	r, err := s.p.findRecord(ctx, "status", s.id)
	if err != nil {
		return atoll.Status{}, err
	}
	return r.Status.Clone(), nil
}

// withLockedRecord runs fn with the latest record of the sandbox, while this program holds the
// sandbox's lock.
func (s *sandbox) withLockedRecord(ctx context.Context, op string, fn func(*record) error) error {
	if err := s.p.open(ctx, op); err != nil {
		return err
	}
	release, err := s.p.locks.Lock(ctx, s.id)
	if err != nil {
		return err
	}
	defer release()
	r, err := s.p.findRecord(ctx, op, s.id)
	if err != nil {
		return err
	}
	return s.p.wrapError(ctx, op, s.id, fn(r))
}

// endedMain returns the main process of an ended sandbox: how it ended, and the stored part of
// its output. Kinds: ErrNotExist (there was none, or it runs).
func (s *sandbox) endedMain(ctx context.Context) (atoll.Process, atoll.ProcessStatus, error) {
	r, err := s.p.findRecord(ctx, "process", s.id)
	if err != nil {
		return nil, atoll.ProcessStatus{}, err
	}
	if err := guestproc.MainEnded(&r.Status); err != nil {
		return nil, atoll.ProcessStatus{}, err
	}
	out, err := s.p.storedOutput(ctx, r)
	if err != nil {
		return nil, atoll.ProcessStatus{}, s.p.wrapError(ctx, "process", s.id, err)
	}
	return guestproc.Main(&r.Status, out.Stdout, out.Stderr)
}

// Extend implements atoll.Extender.
func (s *sandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	defer s.p.sweeper.Rouse()
	return s.withLockedRecord(ctx, "extend", func(r *record) error {
		return s.p.updateRecord(ctx, r, func(n *note) error {
			now := r.Status
			now.Expires = n.Expires
			st, err := now.Extended(ttl, time.Now())
			n.Expires = st.Expires
			return err
		})
	})
}

var (
	_ atoll.Sandbox       = (*sandbox)(nil)
	_ atoll.Dialer        = (*sandbox)(nil)
	_ atoll.Extender      = (*sandbox)(nil)
	_ atoll.Filer         = (*sandbox)(nil)
	_ atoll.ProcessLister = (*sandbox)(nil)
)
