package supervised

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/provider/internal/sweeper"
)

// sweepAll finishes what others began and could not end: creations and removals that were
// killed half way, and sandboxes that expired while they had no supervisor to notice. It
// changes only sandboxes whose lock is free, and returns the time at which the next one is
// due.
func (p *Provider) sweepAll(ctx context.Context) (due time.Time) {
	records, err1 := p.dir.IDs()
	dirs, err2 := p.dir.Dirs()
	errs := []error{err1, err2, p.retryAsOwner(p.dir.EmptyTrash), p.dir.SweepSnapshots(), p.dir.SweepMarks(removeMarked)}
	seen := map[string]bool{}
	for _, id := range append(records, dirs...) {
		if ctx.Err() != nil {
			return due
		}
		if seen[id] {
			continue
		}
		seen[id] = true
		waits, err := p.sweepSandbox(id)
		errs = append(errs, err)
		if waits {
			due = time.Now()
		}
		if rec, err := p.dir.Read(id); err == nil {
			due = sweeper.Earlier(due, dueTime(rec))
		}
	}
	if err := errors.Join(errs...); err != nil {
		p.log.Error("sweep", "err", err)
	}
	return due
}

// removeMarked removes the cgroup and the run directory of a spare supervisor that had no
// record yet.
func removeMarked(group, run string) error {
	if err := cgroup.Open(cgroup.Root).Group(group).Remove(); err != nil || run == "" {
		return err
	}
	return statedir.RemoveRun(run)
}

// dueTime returns the time at which a sandbox without a supervisor has to be removed; the
// zero time means never. The supervisor of a running sandbox removes an idle one itself.
func dueTime(rec *statedir.Record) time.Time {
	st := rec.Status
	if isLive(st.State) {
		st.Stopped = time.Time{}
	}
	return sweeper.RemovalTime(&st, false)
}

// sweepSandbox removes the sandbox if nobody else will. waits reports that the sandbox has
// to go, but that its supervisor, or another process that removes it, is not done.
func (p *Provider) sweepSandbox(id string) (waits bool, err error) {
	rec, err := p.dir.Read(id)
	if err == nil && !isAbandoned(rec) && pathExists(p.dir.Sandbox(id)) {
		return false, p.endFrozen(rec) // the usual case: no lock taken
	}
	removing := err == nil && rec.Removing != nil
	lock, err := p.dir.TryLock(id)
	gone := errors.Is(err, fs.ErrNotExist)
	if gone {
		if !pathExists(p.dir.Record(id)) {
			return false, nil // removed meanwhile
		}
		lock, err = p.dir.Make(id) // so that nobody makes it while we remove the rest
	}
	if errors.Is(err, statedir.ErrBusy) || errors.Is(err, fs.ErrExist) {
		return removing, nil
	}
	if err != nil {
		return false, err
	}
	defer p.events.publishChanges(id) // that a removal failed, which nobody could see while this had the lock
	defer lock.Release()
	rec, err = p.dir.Read(id)
	if errors.Is(err, fs.ErrNotExist) { // killed before it wrote the record, or after it removed it
		if err := p.dir.ReleaseNames(id); err != nil {
			return false, err
		}
		rec = &statedir.Record{Status: atoll.Status{ID: id}, Removing: &atoll.RemoveOptions{}}
	} else if err != nil {
		return false, err
	}
	if gone && rec.Removing == nil {
		rec.Removing = &atoll.RemoveOptions{}
	}
	if !isAbandoned(rec) || p.dir.Alive(id) {
		return rec.Removing != nil || rec.Status.State == atoll.StateCreating, nil
	}
	p.log.Info("sweep", "sandbox", id, "state", rec.Status.State)
	opts := atoll.RemoveOptions{Volumes: rec.Fresh || rec.Status.State != atoll.StateCreating}
	if rec.Removing != nil {
		opts = *rec.Removing
	}
	return false, p.deleteSandbox(rec, opts)
}

// endFrozen ends the processes of a sandbox that was paused when its supervisor was killed, and they with it: some are frozen until
// then.
func (p *Provider) endFrozen(rec *statedir.Record) error {
	if rec.Status.State != atoll.StatePaused || p.dir.Alive(rec.Status.ID) {
		return nil
	}
	return p.sandboxCgroup(rec).Thaw()
}

// clearTimeout bounds the wait for the rest of a sandbox to be removed: a supervisor may
// take that long to notice that nobody wants its sandbox. After busyTimeout, a sandbox
// whose lock is held counts as one that is being made.
const (
	clearTimeout = 2 * time.Second
	busyTimeout  = 200 * time.Millisecond
)

// clearRemains removes the rest of a sandbox that nobody owns any more, or waits while
// another process does. It reports whether nothing is left.
func (p *Provider) clearRemains(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, clearTimeout)
	defer cancel()
	for idle := time.Now(); p.dir.Known(id); {
		if _, err := p.sweepSandbox(id); err != nil {
			return false
		}
		rec, err := p.dir.Read(id)
		if err == nil && !isAbandoned(rec) {
			return false
		}
		if err != nil || rec.Removing != nil || !p.dir.Busy(id) {
			idle = time.Now()
		}
		if time.Since(idle) > busyTimeout {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	return true
}

// isAbandoned reports whether a sandbox whose lock is free and that has no supervisor has
// to be removed: its creation never finished, its removal has begun, it has expired, or it
// should have gone with a main process that died with its supervisor.
func isAbandoned(rec *statedir.Record) bool {
	st, due := &rec.Status, dueTime(rec)
	return rec.Removing != nil || st.State == atoll.StateCreating || st.Spec.AutoRemove && isLive(st.State) ||
		!due.IsZero() && !time.Now().Before(due)
}
