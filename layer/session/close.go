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
	tried := false // and somebody else has finished it
	return l.on(ctx, project, key, func() (again bool, err error) {
		x, err := l.store.FindSession(ctx, project, key)
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
		return l.close(ctx, x)
	})
}

// close is one attempt; again says that another program is at work.
func (l *Provider) close(ctx context.Context, x *Record) (again bool, err error) {
	other, err := l.heldByOther(ctx, x)
	if err != nil {
		return false, err
	}
	if other && x.State == StateOpen {
		return false, atoll.Errorf("close session", x.Spec.Scope.Key(), atoll.ErrConflict, "its sandbox is that of another program, with which it ends")
	}
	if other {
		return true, nil
	}
	return false, l.finish(ctx, x, false)
}

// finish closes x, for which no other program is at work; with remember, that it was
// there is not forgotten. What fails is written down, and tried again by whoever
// comes next.
func (l *Provider) finish(ctx context.Context, x *Record, remember bool) error {
	x.State = StateClosing
	if err := l.claim(ctx, x); err != nil {
		return err
	}
	l.opts.step("closing")
	err := l.remove(ctx, x.Sandbox)
	ctx = context.WithoutCancel(ctx) // what is done is written down
	if err != nil {
		x.Problem = err.Error()
		if err := l.store.UpdateSession(ctx, x); err != nil {
			l.log.Warn("close session: not written down why it failed", "session", x.Spec.Scope.Key(), "err", err)
		}
		return err
	}
	return l.drop(ctx, x, remember)
}

// drop forgets x, whose sandbox is not there; with remember, its end only.
func (l *Provider) drop(ctx context.Context, x *Record, remember bool) error {
	l.uses.forget(x.Sandbox)
	if !remember {
		return l.store.DeleteSession(ctx, x)
	}
	x.State, x.Holder, x.Problem, x.Used = StateGone, "", "", time.Now()
	return l.store.UpdateSession(ctx, x)
}
