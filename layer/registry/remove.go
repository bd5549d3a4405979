package registry

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/retry"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// removeTimeout limits a removal whose caller no longer waits for it.
const removeTimeout = 2 * time.Minute

// Remove implements atoll.Sandbox. If ctx ends during the removal, the removal
// continues, so that the record becomes true soon.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	unlock, err := s.l.locks.lockRecord(ctx, "remove", s.ID())
	if err != nil {
		return err
	}
	return s.l.runDetached(ctx, func(ctx context.Context) error {
		defer unlock()
		return s.l.removeLocked(ctx, s.Sandbox, atoll.ApplyRemoveOptions(opts...))
	})
}

// runDetached runs do and waits for it until ctx ends. do then continues, and Close
// waits for it.
func (l *Provider) runDetached(ctx context.Context, do func(context.Context) error) error {
	done := make(chan error, 1)
	l.removals.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
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

// removeLocked removes a sandbox. The caller holds the sandbox's lock.
func (l *Provider) removeLocked(ctx context.Context, sb atoll.Sandbox, opts atoll.RemoveOptions) error {
	if l.isUnrecorded(sb.ID()) {
		return l.removeUnrecorded(ctx, sb, opts)
	}
	before := store.Record{}
	r, err := l.claimRecord(ctx, "remove", sb.ID(), func(r *store.Record) {
		before = *r
		r.Volumes = opts.Volumes || r.State == store.Removing && r.Volumes
		r.State = store.Removing
	})
	switch {
	case atoll.KindOf(err) == atoll.ErrConflict:
		return err
	case err != nil: // a removal must work with a full disk
		l.log.Warn("remove: cannot record the removal", "sandbox", sb.ID(), "err", err)
	case r != nil:
		opts.Volumes = r.Volumes
	}
	l.opts.onStep("removing")
	if err := sb.Remove(ctx, removeOptions(opts)...); err != nil {
		l.revertRemoval(ctx, r, before)
		return err
	}
	l.opts.onStep("removed")
	l.deleteRecord(ctx, r, sb.ID(), opts.Volumes)
	return nil
}

// removeOptions returns opts as options of Sandbox.Remove.
func removeOptions(opts atoll.RemoveOptions) []atoll.RemoveOption {
	if opts.Volumes {
		return []atoll.RemoveOption{atoll.RemoveVolumes()}
	}
	return nil
}

// isUnrecorded reports whether this program created the sandbox without a record.
func (l *Provider) isUnrecorded(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.unrecorded[id]
	return ok
}

// removeUnrecorded removes a sandbox without a record.
func (l *Provider) removeUnrecorded(ctx context.Context, sb atoll.Sandbox, opts atoll.RemoveOptions) error {
	if err := sb.Remove(ctx, removeOptions(opts)...); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.unrecorded, sb.ID())
	return nil
}

// claimRecord applies change to the record of a sandbox and makes this program its
// holder. It waits up to lockWait while another program holds the record. It
// returns nil if there is no record. The caller holds the sandbox's lock. Kinds:
// ErrConflict.
func (l *Provider) claimRecord(ctx context.Context, op, id string, change func(*store.Record)) (*store.Record, error) {
	var claimed *store.Record
	err := claimPolicy.Do(ctx, func() error {
		r, err := l.store.Find(ctx, id)
		if atoll.KindOf(err) == atoll.ErrNotFound {
			return nil
		}
		if err == nil {
			err = l.takeRecord(ctx, r, change)
		}
		if err == nil {
			claimed = r
		}
		return err
	})
	return claimed, err
}

// claimPolicy retries while another program holds a record.
var claimPolicy = retry.Policy{
	First: time.Millisecond, Max: 50 * time.Millisecond, Timeout: lockWait,
	If: func(err error) bool { return atoll.KindOf(err) == atoll.ErrConflict },
}

// takeRecord applies change to r and makes this program its holder. Kinds:
// ErrConflict (another program holds it).
func (l *Provider) takeRecord(ctx context.Context, r *store.Record, change func(*store.Record)) error {
	if err := l.checkHolder(ctx, r); err != nil {
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

// errHeldElsewhere reports that another program holds the record of a sandbox.
var errHeldElsewhere = errors.New("another program manages this sandbox; retry when it has ended")

// checkHolder returns ErrConflict if another running program holds the record.
func (l *Provider) checkHolder(ctx context.Context, r *store.Record) error {
	me, err := l.store.Holder(ctx)
	if err != nil || r.Holder == me {
		return err
	}
	alive, err := l.store.IsAlive(ctx, r.Holder)
	if err == nil && alive {
		err = atoll.E("find", r.ID, atoll.ErrConflict, errHeldElsewhere)
	}
	return err
}

// revertRemoval restores the record before, if the sandbox still exists: after a
// failed removal the caller may want to use it.
func (l *Provider) revertRemoval(ctx context.Context, r *store.Record, before store.Record) {
	if r == nil || before.State == store.Removing {
		return
	}
	if _, err := l.ProviderLayer.Get(ctx, r.ID); err != nil {
		return
	}
	r.State, r.Volumes, r.Holder = before.State, before.Volumes, before.Holder
	if err := l.store.Update(ctx, r); err != nil {
		l.log.Warn("remove: cannot restore the record; the next reconcile removes the sandbox", "sandbox", r.ID, "err", err)
	}
}

// deleteRecord deletes the record of a removed sandbox and, with volumes, its
// secret. r is nil if there is no record.
func (l *Provider) deleteRecord(ctx context.Context, r *store.Record, id string, volumes bool) {
	var err error
	switch {
	case r != nil:
		err = l.store.Delete(ctx, r, volumes)
	case volumes:
		err = l.store.DropSecret(ctx, id)
	}
	if err != nil {
		l.log.Warn("remove: cannot delete the record", "sandbox", id, "err", err)
	}
}

// removeData removes the data volume of a sandbox that does not exist.
func (l *Provider) removeData(ctx context.Context, id string) error {
	all, err := atoll.Volumes(ctx, l.Provider, "")
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		return nil
	}
	for _, v := range all {
		if v.Sandbox == id {
			err = errors.Join(err, l.removeVolume(ctx, v))
		}
	}
	return err
}

// removeVolume removes a volume, if it still exists.
func (l *Provider) removeVolume(ctx context.Context, v atoll.Volume) error {
	err := atoll.RemoveVolume(ctx, l.Provider, v.Project, v.Name)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return nil
	}
	return err
}

// RemoveProject implements atoll.ProjectRemover.
func (l *Provider) RemoveProject(ctx context.Context, project string) error {
	if err := l.removeRecorded(ctx, project); err != nil {
		return err
	}
	return atoll.RemoveProject(ctx, l.Provider, project)
}

// removeRecorded removes the recorded sandboxes of a project, one by one.
func (l *Provider) removeRecorded(ctx context.Context, project string) error {
	all, err := l.store.Records(ctx)
	if err != nil {
		l.log.Warn("remove project: cannot read the records", "project", project, "err", err)
	}
	for _, r := range all {
		if r.Scope != l.scope || r.Spec.Project != project {
			continue
		}
		sb, err := l.Get(ctx, r.ID)
		if err == nil {
			err = sb.Remove(ctx, atoll.RemoveVolumes())
		}
		if err := ignoreNotFound(err); err != nil {
			return err
		}
	}
	return nil
}
