//go:build linux

package gvisor

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/statedir"
)

// sweepEvery is how often what nobody looks after is looked for.
const sweepEvery = time.Minute

// sweep finishes what others began and could not end: creations and removals
// that were killed half way, and sandboxes whose time came while nothing ran
// that would notice. It touches only sandboxes whose lock is free.
func (p *Provider) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		if err := p.sweepOnce(ctx); err != nil {
			p.log.Error("sweep", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (p *Provider) sweepOnce(ctx context.Context) error {
	records, err1 := p.dir.IDs()
	dirs, err2 := p.dir.Dirs()
	errs := []error{err1, err2, p.dir.EmptyTrash()}
	seen := map[string]bool{}
	for _, id := range append(records, dirs...) {
		if ctx.Err() != nil {
			return nil
		}
		if !seen[id] {
			seen[id] = true
			errs = append(errs, p.sweepSandbox(id))
		}
	}
	return errors.Join(errs...)
}

func (p *Provider) sweepSandbox(id string) error {
	if rec, err := p.dir.Read(id); err == nil && !left(rec) && exists(p.dir.Sandbox(id)) {
		return nil // as nearly always: no lock taken
	}
	lock, err := p.dir.TryLock(id)
	if errors.Is(err, statedir.ErrBusy) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer lock.Release()
	rec, err := p.dir.Read(id)
	if errors.Is(err, fs.ErrNotExist) { // killed before it wrote the record
		rec = &statedir.Record{Status: atoll.Status{ID: id}}
		rec.Removing = &atoll.RemoveOptions{}
	} else if err != nil {
		return err
	}
	if lock == nil && rec.Removing == nil { // the directory is gone, the record is not
		rec.Removing = &atoll.RemoveOptions{}
	}
	if !left(rec) || p.dir.Alive(id) {
		return nil
	}
	p.log.Info("sweep", "sandbox", id, "state", rec.Status.State)
	opts := atoll.RemoveOptions{Volumes: rec.Status.State != atoll.StateCreating}
	if rec.Removing != nil {
		opts = *rec.Removing
	}
	return p.delete(rec, opts)
}

// left reports whether nobody will look after the sandbox any more, if its lock
// is free: it was never finished, is being removed, or its time is over.
func left(rec *statedir.Record) bool {
	st := &rec.Status
	expired := !st.Expires.IsZero() && time.Now().After(st.Expires.Add(atoll.AutoRemoveLinger))
	ended := st.Spec.AutoRemove && !live(st.State) && st.State != atoll.StateCreated &&
		!st.Stopped.IsZero() && time.Since(st.Stopped) > 2*atoll.AutoRemoveLinger
	return rec.Removing != nil || st.State == atoll.StateCreating || expired || ended
}
