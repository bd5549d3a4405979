package session

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/idletracker"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// startMaintenance starts the periodic checks of all sessions, which end with
// Close. A server checks at once, other programs after the first interval.
func (l *Provider) startMaintenance() {
	l.maintainOnce.Do(func() {
		l.background.Go(func() {
			pause := l.opts.checkEvery
			if l.opts.Server {
				pause = l.checkAll(l.ctx)
			}
			for {
				select {
				case <-time.After(pause):
				case <-l.wake:
				case <-l.ctx.Done():
					return
				}
				pause = l.checkAll(l.ctx)
			}
		})
	})
}

// checkAll checks all sessions once. It returns the time until the next check.
func (l *Provider) checkAll(ctx context.Context) (pause time.Duration) {
	pause = l.opts.checkEvery
	all, err := l.store.Sessions(ctx, "")
	if err == nil && len(all) > 0 {
		err = l.checkSessions(ctx, all, &pause)
	}
	if err != nil && ctx.Err() == nil {
		l.log.Warn("sessions: check failed", "err", err)
	}
	return pause
}

// checkSessions lists all sandboxes in one call, and checks only the sessions that
// need it: interrupted ones, and those whose sandbox is gone or may be idle. It
// lowers pause to the next time that any needs a check.
func (l *Provider) checkSessions(ctx context.Context, all []*Record, pause *time.Duration) error {
	sandboxes, listErr := l.Provider.List(ctx, atoll.Filter{})
	byID := make(map[string]*atoll.Status, len(sandboxes))
	for i := range sandboxes {
		byID[sandboxes[i].ID] = &sandboxes[i]
	}
	for _, rec := range all {
		unfinished := rec.State == StateOpening || rec.State == StateClosing
		if !unfinished && (listErr != nil || needsNoCheck(rec, byID[rec.Sandbox])) {
			continue
		}
		key := rec.Spec.Scope.Key()
		unlock, ok := l.locks.Try(rec.Spec.Project + "/" + key)
		if !ok {
			continue // another goroutine works on it
		}
		within, cancel := context.WithTimeout(ctx, checkTimeout) // a sandbox that hangs must not delay the others
		next, err := l.checkSession(within, rec)
		cancel()
		unlock()
		if err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrChanged) { // ErrChanged: another program has just used it
			l.log.Warn("sessions: check failed", "session", key, "project", rec.Spec.Project, "err", err)
		}
		if next > 0 {
			*pause = min(*pause, next)
		}
	}
	return listErr
}

// checkTimeout limits the check of one session, with its close.
const checkTimeout = time.Minute

// goneRetention is the time for which the layer remembers a session whose sandbox
// is gone.
const goneRetention = 7 * 24 * time.Hour

// needsNoCheck reports whether a session needs no check. st is the status of its
// sandbox; nil if List did not return it.
func needsNoCheck(rec *Record, st *atoll.Status) bool {
	if st == nil {
		return rec.State == StateGone && time.Since(rec.Used) < goneRetention
	}
	return rec.State == StateOpen && (st.Caps.IdleStop || rec.Spec.IdleTimeout == atoll.Never)
}

// checkSession checks one session: it completes an interrupted open or close,
// closes an idle session, and records that a sandbox is gone. It returns the time
// until its next check, 0 if it needs none. The caller holds the session's lock.
func (l *Provider) checkSession(ctx context.Context, rec *Record) (next time.Duration, err error) {
	rec, err = l.store.FindSession(ctx, rec.Spec.Project, rec.Spec.Scope.Key()) // read again under the lock
	if err != nil {
		if atoll.KindOf(err) == atoll.ErrNotExist {
			err = nil
		}
		return 0, err
	}
	other, err := l.heldByOther(ctx, rec)
	if err != nil || other {
		return 0, err
	}
	switch rec.State {
	case StateOpening: // its program is dead
		return 0, l.finishClose(ctx, rec, rec.Problem != "")
	case StateClosing:
		return 0, l.finishClose(ctx, rec, false)
	}
	sb, err := l.Provider.Get(ctx, rec.Sandbox)
	var st atoll.Status
	if err == nil {
		st, err = sb.Status(ctx)
	}
	switch gone := atoll.KindOf(err) == atoll.ErrNotFound; {
	case gone && rec.State != StateGone:
		_, err = l.markGone(ctx, rec)
		return 0, err
	case gone && time.Since(rec.Used) >= goneRetention:
		return 0, l.dropRecord(ctx, rec, false)
	case gone:
		return 0, nil
	case err == nil && rec.State == StateGone: // the sandbox is back, for example with its engine
		rec.State, rec.Used = StateOpen, time.Now()
		err = l.store.UpdateSession(ctx, rec)
	}
	if err != nil || st.Caps.IdleStop || rec.Spec.IdleTimeout == atoll.Never {
		return 0, err
	}
	limit := time.Duration(rec.Spec.IdleTimeout)
	last := l.lastUse(ctx, rec, sb)
	if time.Since(last) >= limit {
		return 0, l.finishClose(ctx, rec, true)
	}
	if last.Sub(rec.Used) >= idletracker.Step(limit) {
		rec.Used = last
		err = l.store.UpdateSession(ctx, rec)
	}
	return idletracker.Step(limit), err
}

// lastUse returns when the sandbox was last used: now, if a command runs in it, or
// if that is unknown.
func (l *Provider) lastUse(ctx context.Context, rec *Record, sb atoll.Sandbox) time.Time {
	all, err := atoll.Processes(ctx, sb)
	if err != nil && atoll.KindOf(err) != atoll.ErrStopped {
		return time.Now()
	}
	for _, p := range all {
		if p.Exit == nil && p.ID != atoll.MainProcess {
			return time.Now()
		}
	}
	if last := l.tracker.forSandbox(rec.Sandbox).Latest(); last.After(rec.Used) {
		return last
	}
	return rec.Used
}
