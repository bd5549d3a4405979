package session

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/idletracker"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// care looks after the sessions from now on, until Close: a server at once, others
// if they are still there in a while.
func (l *Provider) care() {
	l.caring.Do(func() {
		l.work.Go(func() {
			pause := l.opts.look
			if l.opts.Server {
				pause = l.round(l.ctx)
			}
			for {
				select {
				case <-time.After(pause):
				case <-l.soon:
				case <-l.ctx.Done():
					return
				}
				pause = l.round(l.ctx)
			}
		})
	})
}

// round looks after all sessions once: what was cut short is finished, what nobody
// uses closed, and what is gone written down as that. It returns when to look again.
func (l *Provider) round(ctx context.Context) (pause time.Duration) {
	pause = l.opts.look
	all, err := l.store.Sessions(ctx, "")
	if err == nil && len(all) > 0 {
		err = l.lookAround(ctx, all, &pause)
	}
	if err != nil && ctx.Err() == nil {
		l.log.Warn("sessions: look", "err", err)
	}
	return pause
}

// lookAround looks at those sessions of which a list of sandboxes says that there is
// something to see: it is one call, and they may be many.
func (l *Provider) lookAround(ctx context.Context, all []*Record, pause *time.Duration) error {
	sandboxes, listErr := l.Provider.List(ctx, atoll.Filter{})
	byID := make(map[string]*atoll.Status, len(sandboxes))
	for i := range sandboxes {
		byID[sandboxes[i].ID] = &sandboxes[i]
	}
	for _, x := range all {
		half := x.State == StateOpening || x.State == StateClosing
		if !half && (listErr != nil || isFine(x, byID[x.Sandbox])) {
			continue
		}
		key := x.Spec.Scope.Key()
		unlock, ok := l.locks.Try(x.Spec.Project + "/" + key)
		if !ok {
			continue // somebody is at work on it
		}
		within, cancel := context.WithTimeout(ctx, lookTime) // one that hangs does not keep the others
		next, err := l.lookAt(within, x)
		cancel()
		unlock()
		if err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrChanged) { // else another program has just used it
			l.log.Warn("sessions: look", "session", key, "project", x.Spec.Project, "err", err)
		}
		if next > 0 {
			*pause = min(*pause, next)
		}
	}
	return listErr
}

// lookTime is how long it may take to look at one session, and to close it.
const lookTime = time.Minute

// remembered is how long it is that a session whose sandbox has gone was there.
const remembered = 7 * 24 * time.Hour

// isFine reports whether nothing is to be done about a session, as far as st says, the
// status of its sandbox; nil where that is not listed.
func isFine(x *Record, st *atoll.Status) bool {
	if st == nil {
		return x.State == StateGone && time.Since(x.Used) < remembered
	}
	return x.State == StateOpen && (st.Caps.IdleStop || x.Spec.IdleTimeout == atoll.Never)
}

// lookAt returns when to look again, 0 if that does not matter.
func (l *Provider) lookAt(ctx context.Context, x *Record) (next time.Duration, err error) {
	x, err = l.store.FindSession(ctx, x.Spec.Project, x.Spec.Scope.Key()) // since it was listed, it may have changed
	if err != nil {
		if atoll.KindOf(err) == atoll.ErrNotExist {
			err = nil
		}
		return 0, err
	}
	other, err := l.heldByOther(ctx, x)
	if err != nil || other {
		return 0, err
	}
	switch x.State {
	case StateOpening: // nobody waits for it
		return 0, l.finish(ctx, x, x.Problem != "")
	case StateClosing:
		return 0, l.finish(ctx, x, false)
	}
	sb, err := l.Provider.Get(ctx, x.Sandbox)
	var st atoll.Status
	if err == nil {
		st, err = sb.Status(ctx)
	}
	switch gone := atoll.KindOf(err) == atoll.ErrNotFound; {
	case gone && x.State != StateGone:
		_, err = l.forget(ctx, x)
		return 0, err
	case gone && time.Since(x.Used) >= remembered:
		return 0, l.drop(ctx, x, false)
	case gone:
		return 0, nil
	case err == nil && x.State == StateGone: // it is back, as its backend is
		x.State, x.Used = StateOpen, time.Now()
		err = l.store.UpdateSession(ctx, x)
	}
	if err != nil || st.Caps.IdleStop || x.Spec.IdleTimeout == atoll.Never {
		return 0, err
	}
	limit := time.Duration(x.Spec.IdleTimeout)
	last := l.lastUse(ctx, x, sb)
	if time.Since(last) >= limit {
		return 0, l.finish(ctx, x, true)
	}
	if last.Sub(x.Used) >= idletracker.Step(limit) {
		x.Used = last
		err = l.store.UpdateSession(ctx, x)
	}
	return idletracker.Step(limit), err
}

// lastUse is when the sandbox was last used: now, if anything goes on in it, or
// there is no telling.
func (l *Provider) lastUse(ctx context.Context, x *Record, sb atoll.Sandbox) time.Time {
	all, err := atoll.Processes(ctx, sb)
	if err != nil && atoll.KindOf(err) != atoll.ErrStopped {
		return time.Now()
	}
	for _, p := range all {
		if p.Exit == nil && p.ID != atoll.MainProcess {
			return time.Now()
		}
	}
	if last := l.uses.of(x.Sandbox).Latest(); last.After(x.Used) {
		return last
	}
	return x.Used
}
