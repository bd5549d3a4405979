package session

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/idle"
	"github.com/seed46cd37a8/atoll/store"
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

// round looks at every session once: what was cut short is finished, what nobody
// uses closed, and what is gone forgotten. It returns when to look again.
func (l *Provider) round(ctx context.Context) (pause time.Duration) {
	pause = l.opts.look
	all, err := l.store.Sessions(ctx, "")
	if err != nil {
		if ctx.Err() == nil {
			l.log.Warn("sessions: look", "err", err)
		}
		return pause
	}
	for _, x := range all {
		key := x.Spec.Scope.Key()
		unlock, ok := l.locks.Try(x.Spec.Project + "/" + key)
		if !ok {
			continue // somebody is at work on it
		}
		next, err := l.lookAt(ctx, x)
		unlock()
		if err != nil && ctx.Err() == nil {
			l.log.Warn("sessions: look", "session", key, "project", x.Spec.Project, "err", err)
		}
		if next > 0 {
			pause = min(pause, next)
		}
	}
	return pause
}

// lookAt returns when to look again, 0 if that does not matter.
func (l *Provider) lookAt(ctx context.Context, x *store.Session) (next time.Duration, err error) {
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
	if x.State != atoll.SessionOpen {
		return 0, l.finish(ctx, x) // nobody waits for one that was being opened
	}
	sb, err := l.Provider.Get(ctx, x.Sandbox)
	var st atoll.Status
	if err == nil {
		st, err = sb.Status(ctx)
	}
	if atoll.KindOf(err) == atoll.ErrNotFound {
		_, err = l.forget(ctx, x)
		return 0, err
	}
	if err != nil || st.Caps.IdleStop || x.Spec.IdleTimeout == atoll.Never {
		return 0, err
	}
	limit := time.Duration(x.Spec.IdleTimeout)
	last := l.lastUse(ctx, x, sb)
	if time.Since(last) >= limit {
		return 0, l.finish(ctx, x)
	}
	if last.Sub(x.Used) >= idle.Step(limit) {
		x.Used = last
		err = l.store.UpdateSession(ctx, x)
	}
	return idle.Step(limit), err
}

// lastUse is when the sandbox was last used: now, if anything goes on in it, or
// there is no telling.
func (l *Provider) lastUse(ctx context.Context, x *store.Session, sb atoll.Sandbox) time.Time {
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
