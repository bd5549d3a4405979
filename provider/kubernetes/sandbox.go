package kubernetes

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

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

// withLockedRecord runs fn with the latest record of the sandbox, including changes that
// another program has just made, while this program holds the sandbox's lock.
func (s *sandbox) withLockedRecord(ctx context.Context, op string, fn func(*record) error) error {
	if err := s.p.view.open(ctx, op); err != nil {
		return err
	}
	release, err := s.p.locks.Lock(ctx, s.id)
	if err != nil {
		return err
	}
	defer release()
	r, err := s.p.findLatestRecord(ctx, op, s.id)
	if err != nil {
		return err
	}
	return s.p.wrapError(ctx, op, s.id, fn(r))
}

// Exec implements atoll.Sandbox.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	if s.p.opts.Profile == Restricted && cmd.User != "" && cmd.User != userAndGroup(s.p.opts.User) {
		return nil, atoll.Errorf("exec", s.id, atoll.ErrUnsupported, "user %q not available: all processes run as uid %d (set kubernetes.profile: %s)", cmd.User, s.p.opts.User, Baseline)
	}
	return s.Sandbox.Exec(ctx, cmd)
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
	out := storedOutput(r)
	if r.note.State == atoll.StateRunning { // no program has recorded the end yet
		if out, err = s.p.readPodLog(ctx, r); err != nil {
			if again, lookErr := s.p.findRecord(ctx, "process", s.id); lookErr == nil && again.note.State != atoll.StateRunning && again.Exit != nil { // another program has recorded it meanwhile
				r, out = again, storedOutput(again)
			} else {
				s.p.opts.Log.Warn("cannot read the pod's log", "sandbox", s.id, "err", err)
			}
		}
	}
	return guestproc.Main(&r.Status, out.Stdout, out.Stderr)
}

// Extend implements atoll.Extender.
func (s *sandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	defer s.p.sweeper.Rouse()
	return s.withLockedRecord(ctx, "extend", func(r *record) error {
		return s.p.updateRecord(ctx, r, func(_ *corev1.ConfigMap, n *note) error {
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
	_ atoll.Sandbox       = (*sandbox)(nil)
	_ atoll.Dialer        = (*sandbox)(nil)
	_ atoll.Extender      = (*sandbox)(nil)
	_ atoll.Filer         = (*sandbox)(nil)
	_ atoll.ProcessLister = (*sandbox)(nil)
)
