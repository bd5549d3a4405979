package kubernetes

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/sweeper"
)

// sweep removes the sandboxes whose time is over, and what is left of those that were
// never finished, and writes down how others have ended. Any provider of the same cluster
// does it: what one has done, another finds done. It asks the cluster for nothing.
func (p *Provider) sweep(ctx context.Context) (due time.Time) {
	if !p.view.isOpen() {
		return due // its opening rouses the sweeper
	}
	for _, object := range p.view.records() {
		r := p.read(object)
		t := r.due()
		var err error
		if !t.IsZero() && !time.Now().Before(t) {
			err = p.sweepAway(ctx, r.ID)
		} else if due = sweeper.Sooner(due, t); r.State == atoll.StateStopped && r.note.State == atoll.StateRunning {
			err = p.writeDown(ctx, r.ID)
		}
		for _, pod := range p.view.pods(r.ID, roleCaretaker) {
			if ended(pod) && err == nil {
				err = p.kill(ctx, pod)
			}
		}
		if err != nil && ctx.Err() == nil {
			p.opts.Log.Warn("sweep", "sandbox", r.ID, "err", err)
			due = sweeper.Sooner(due, time.Now().Add(time.Second))
		}
	}
	return due
}

// due is when the sandbox's time is over; zero means that it is not known.
func (r *record) due() time.Time {
	if r.note.State == atoll.StateCreating && !r.note.Until.IsZero() {
		return r.note.Until.Add(time.Second)
	}
	return sweeper.Due(&r.Status, r.note.Idle)
}

// sweepAway removes a sandbox with its data volume, if it is still due: it may have been
// started again.
func (p *Provider) sweepAway(ctx context.Context, id string) error {
	release, err := p.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	r, err := p.look(ctx, "remove", id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if t := r.due(); t.IsZero() || time.Now().Before(t) {
		return nil
	}
	half := r.note.State == atoll.StateCreating // its data volume may be that of a sandbox before it
	return p.remove(ctx, id, atoll.RemoveOptions{Volumes: !half})
}

// writeDown writes down how a sandbox has ended.
func (p *Provider) writeDown(ctx context.Context, id string) error {
	release, err := p.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	r, err := p.look(ctx, "stop", id)
	if err != nil {
		return nil // it is not there any more
	}
	if r.State != atoll.StateStopped {
		return nil
	}
	return p.fold(ctx, r)
}
