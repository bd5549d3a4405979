package registry

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// removeTime is how long a removal may take that its caller no longer waits for.
const removeTime = 2 * time.Minute

// Remove implements atoll.Sandbox. Once it has begun it goes on without its
// caller, so that what is written down is soon true.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	unlock, err := s.l.gate.lock(ctx, "remove", s.ID())
	if err != nil {
		return err
	}
	return s.l.detached(ctx, func(ctx context.Context) error {
		defer unlock()
		return s.l.remove(ctx, s.Sandbox, atoll.RemoveOpts(opts...))
	})
}

// detached runs do, and waits for it as long as ctx lasts. Close waits to the end.
func (l *Provider) detached(ctx context.Context, do func(context.Context) error) error {
	done := make(chan error, 1)
	l.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
		defer cancel()
		done <- do(ctx)
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// remove is Remove by who holds the sandbox's gate.
func (l *Provider) remove(ctx context.Context, sb atoll.Sandbox, opts atoll.RemoveOptions) error {
	if l.isLoose(sb.ID()) {
		return l.removeLoose(ctx, sb, opts)
	}
	before := store.Record{}
	r, err := l.claim(ctx, "remove", sb.ID(), func(r *store.Record) {
		before = *r
		r.Volumes = opts.Volumes || r.State == store.Removing && r.Volumes
		r.State = store.Removing
	})
	switch {
	case atoll.KindOf(err) == atoll.ErrConflict:
		return err
	case err != nil: // a full disk must not be in the way of what makes room
		l.log.Warn("remove: not written down", "sandbox", sb.ID(), "err", err)
	case r != nil:
		opts.Volumes = r.Volumes
	}
	l.opts.step("removing")
	if err := sb.Remove(ctx, options(opts)...); err != nil {
		l.retract(ctx, r, before)
		return err
	}
	l.opts.step("removed")
	l.forget(ctx, r, sb.ID(), opts.Volumes)
	return nil
}

func options(opts atoll.RemoveOptions) []atoll.RemoveOption {
	if opts.Volumes {
		return []atoll.RemoveOption{atoll.RemoveVolumes()}
	}
	return nil
}

func (l *Provider) isLoose(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.loose[id]
	return ok
}

func (l *Provider) removeLoose(ctx context.Context, sb atoll.Sandbox, opts atoll.RemoveOptions) error {
	if err := sb.Remove(ctx, options(opts)...); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.loose, sb.ID())
	return nil
}

// claim changes the record of a sandbox, whose gate is held, to what this program
// does to it, and waits while another program does something. It is nil when the
// sandbox is not written down. Kinds: ErrConflict.
func (l *Provider) claim(ctx context.Context, op, id string, change func(*store.Record)) (*store.Record, error) {
	deadline := time.Now().Add(lockWait)
	for delay := time.Millisecond; ; delay = min(2*delay, 50*time.Millisecond) {
		r, err := l.store.Find(ctx, id)
		if atoll.KindOf(err) == atoll.ErrNotFound {
			return nil, nil
		}
		if err == nil {
			err = l.take(ctx, r, change)
		}
		if err == nil {
			return r, nil
		}
		if atoll.KindOf(err) != atoll.ErrConflict || time.Now().After(deadline) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(delay):
		}
	}
}

// take changes the record, which is this program's from then on. Kinds:
// ErrConflict (another one's).
func (l *Provider) take(ctx context.Context, r *store.Record, change func(*store.Record)) error {
	if err := l.free(ctx, r); err != nil {
		return err
	}
	me, err := l.store.Holder(ctx)
	if err != nil {
		return err
	}
	change(r)
	r.Holder = me
	return l.store.Update(ctx, r)
}

// errElsewhere says that a sandbox is not for this program to change now.
var errElsewhere = errors.New("another program is at work on this sandbox, or it ends with that")

// free is ErrConflict when another program that runs holds the record.
func (l *Provider) free(ctx context.Context, r *store.Record) error {
	me, err := l.store.Holder(ctx)
	if err != nil || r.Holder == me {
		return err
	}
	alive, err := l.store.Alive(ctx, r.Holder)
	if err == nil && alive {
		err = atoll.E("find", r.ID, atoll.ErrConflict, errElsewhere)
	}
	return err
}

// retract takes back that a sandbox is being removed, if it is still there: who
// was told that it could not be done may change their mind.
func (l *Provider) retract(ctx context.Context, r *store.Record, before store.Record) {
	if r == nil || before.State == store.Removing {
		return
	}
	if _, err := l.ProviderLayer.Get(ctx, r.ID); err != nil {
		return
	}
	r.State, r.Volumes, r.Holder = before.State, before.Volumes, before.Holder
	if err := l.store.Update(ctx, r); err != nil {
		l.log.Warn("remove: the next reconcile will try again", "sandbox", r.ID, "err", err)
	}
}

// forget deletes what is written down of a sandbox that has gone, with volumes
// its secret too. r is nil when that is all there is.
func (l *Provider) forget(ctx context.Context, r *store.Record, id string, volumes bool) {
	var err error
	switch {
	case r != nil:
		err = l.store.Delete(ctx, r, volumes)
	case volumes:
		err = l.store.DropSecret(ctx, id)
	}
	if err != nil {
		l.log.Warn("remove: still written down", "sandbox", id, "err", err)
	}
}

// removeData deletes the data volume of a sandbox that is not there.
func (l *Provider) removeData(ctx context.Context, id string) error {
	all, err := atoll.Volumes(ctx, l.Provider, "")
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		return nil
	}
	for _, v := range all {
		if v.Sandbox == id {
			err = atoll.RemoveVolume(ctx, l.Provider, v.Project, v.Name)
		}
	}
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return nil
	}
	return err
}

// RemoveProject implements atoll.ProjectRemover.
func (l *Provider) RemoveProject(ctx context.Context, project string) error {
	if err := l.removeWritten(ctx, project); err != nil {
		return err
	}
	return atoll.RemoveProject(ctx, l.Provider, project)
}

// removeWritten removes the sandboxes of a project, one by one, that are written
// down.
func (l *Provider) removeWritten(ctx context.Context, project string) error {
	all, err := l.store.Records(ctx)
	if err != nil {
		l.log.Warn("remove project: not written down", "project", project, "err", err)
	}
	for _, r := range all {
		if r.Scope != l.scope || r.Spec.Project != project {
			continue
		}
		sb, err := l.Get(ctx, r.ID)
		if err == nil {
			err = sb.Remove(ctx, atoll.RemoveVolumes())
		}
		if err := notFoundIsFine(err); err != nil {
			return err
		}
	}
	return nil
}
