package session

import (
	"cmp"
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// CloseSession implements session.Manager.
func (l *Provider) CloseSession(ctx context.Context, project, key string) error {
	project = cmp.Or(project, atoll.DefaultProject)
	tried := false // if true, a missing record means that another program has closed it
	return l.withLock(ctx, project, key, func() (again bool, err error) {
		rec, err := l.store.FindSession(ctx, project, key)
		if atoll.KindOf(err) == atoll.ErrNotExist {
			if tried {
				return false, nil
			}
			return false, atoll.Errorf("close session", key, atoll.ErrNotExist, "project %s has no such session", project)
		}
		if err != nil {
			return false, err
		}
		tried = true
		return l.tryClose(ctx, rec)
	})
}

// tryClose is one attempt of CloseSession. again reports that another program works
// on the session.
func (l *Provider) tryClose(ctx context.Context, rec *Record) (again bool, err error) {
	other, err := l.heldByOther(ctx, rec)
	if err != nil {
		return false, err
	}
	if other && rec.State == StateOpen {
		return false, atoll.Errorf("close session", rec.Spec.Scope.Key(), atoll.ErrConflict, "the sandbox of the session belongs to another program and ends with it; close the session there")
	}
	if other {
		return true, nil
	}
	return false, l.finishClose(ctx, rec, false)
}

// finishClose removes the sandbox of rec and then its record. With remember, the
// record stays, in StateGone. If the removal fails, finishClose records the error;
// the next open, close or check tries again. No other program may hold rec.
func (l *Provider) finishClose(ctx context.Context, rec *Record, remember bool) error {
	rec.State = StateClosing
	if err := l.claimRecord(ctx, rec); err != nil {
		return err
	}
	l.opts.onStep("closing")
	err := l.removeSandbox(ctx, rec.Sandbox)
	ctx = context.WithoutCancel(ctx) // record the result in any case
	if err != nil {
		rec.Problem = err.Error()
		if err := l.store.UpdateSession(ctx, rec); err != nil {
			l.log.Warn("close session: cannot record the failure", "session", rec.Spec.Scope.Key(), "err", err)
		}
		return err
	}
	return l.dropRecord(ctx, rec, remember)
}

// dropRecord deletes the record of rec, whose sandbox does not exist. With remember,
// it marks the record as gone instead.
func (l *Provider) dropRecord(ctx context.Context, rec *Record, remember bool) error {
	l.tracker.dropSandbox(rec.Sandbox)
	if !remember {
		return l.store.DeleteSession(ctx, rec)
	}
	rec.State, rec.Holder, rec.Problem, rec.Used = StateGone, "", "", time.Now()
	return l.store.UpdateSession(ctx, rec)
}
