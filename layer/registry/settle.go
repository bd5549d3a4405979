package registry

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/secret"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// An outcome is the result of settling a record.
type outcome struct {
	found  Found // "" if nothing was wrong
	done   Action
	reason string
	gone   bool // the record is deleted
}

// settleLocked compares a record with the provider, and completes an interrupted
// operation. With dry, it only returns the outcome. If the provider fails with
// anything but ErrNotFound, it changes nothing. The caller holds the sandbox's
// lock. Kinds: ErrConflict (another program holds the record).
func (l *Provider) settleLocked(ctx context.Context, r *store.Record, dry bool) (outcome, error) {
	if err := l.checkHolder(ctx, r); err != nil {
		return outcome{}, err
	}
	sb, err := l.ProviderLayer.Get(ctx, r.ID)
	if ignoreNotFound(err) != nil {
		return outcome{}, err
	}
	out := l.chooseOutcome(r, sb != nil)
	if out.done == DoneFinished && r.State == store.Creating {
		st, err := sb.Status(ctx)
		if err != nil {
			return outcome{}, err
		}
		if st.State == atoll.StateCreating { // the program that created it is dead
			out.done, out.gone = DoneRemoved, true
		}
	}
	if out.done == "" || dry {
		return out, nil
	}
	return out, l.applyOutcome(ctx, r, sb, out)
}

// chooseOutcome returns what to do with a record; exists reports whether its sandbox
// exists.
func (l *Provider) chooseOutcome(r *store.Record, exists bool) outcome {
	switch {
	case r.State == store.Removing:
		return outcome{found: FoundUnfinished, done: DoneFinished, reason: "removal interrupted", gone: true}
	case r.State == store.Rebuilding && exists:
		return outcome{found: FoundUnfinished, done: DoneFinished, reason: "rebuild interrupted"}
	case r.State == store.Rebuilding && r.Reason != "":
		return outcome{found: FoundUnfinished, done: DoneRebuilt, reason: "rebuild failed: " + r.Reason}
	case r.State == store.Rebuilding:
		return outcome{found: FoundUnfinished, done: DoneRebuilt, reason: "rebuild interrupted"}
	case r.State == store.Creating && exists:
		return outcome{found: FoundUnfinished, done: DoneFinished, reason: "creation interrupted"}
	case r.State == store.Creating:
		return outcome{found: FoundUnfinished, done: DoneForgotten, reason: "creation interrupted", gone: true}
	case exists:
		return outcome{}
	case r.Spec.IdleRemove || endedBySpec(r):
		return outcome{done: DoneForgotten, gone: true}
	}
	return outcome{found: FoundMissing, done: DoneForgotten, reason: "the provider does not have the sandbox", gone: true}
}

// endedBySpec reports whether the Spec of a missing sandbox explains its end:
// AutoRemove, or an expired TTL.
func endedBySpec(r *store.Record) bool {
	s := &r.Spec
	return s.AutoRemove || s.TTL > 0 && time.Since(r.Created) >= time.Duration(s.TTL)
}

// applyOutcome does what chooseOutcome chose.
func (l *Provider) applyOutcome(ctx context.Context, r *store.Record, sb atoll.Sandbox, out outcome) error {
	switch {
	case out.done == DoneForgotten && r.State == store.Present && !endedBySpec(r):
		return l.store.Forget(ctx, r) // remembers its end: with another backend address, it may reappear
	case out.done == DoneForgotten && r.State == store.Creating:
		if err := l.dropCreatedVolume(ctx, r); err != nil {
			return err
		}
		return l.store.Delete(ctx, r, false)
	case out.done == DoneForgotten:
		return l.store.Delete(ctx, r, false) // the secret remains until the data volume is gone
	case out.gone:
		return l.finishRemoval(ctx, r, sb)
	case out.done == DoneRebuilt:
		return l.recreateSandbox(ctx, r)
	}
	l.recordPresent(ctx, r, sb)
	return nil
}

// dropCreatedVolume removes the data volume of an interrupted creation, unless the
// volume existed before and belonged to a former sandbox with this ID.
func (l *Provider) dropCreatedVolume(ctx context.Context, r *store.Record) error {
	if err := l.takeRecord(ctx, r, func(*store.Record) {}); err != nil { // a Create with this ID now waits
		return err
	}
	if !r.Volumes {
		return nil
	}
	all, err := atoll.Volumes(ctx, l.Provider, r.Spec.Project)
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		return nil
	}
	for _, v := range all {
		if v.Sandbox == r.ID && !v.InUse {
			err = errors.Join(err, l.removeVolume(ctx, v))
		}
	}
	return err
}

// finishRemoval removes the rest of a sandbox; sb is nil if the sandbox itself is
// gone.
func (l *Provider) finishRemoval(ctx context.Context, r *store.Record, sb atoll.Sandbox) error {
	if err := l.takeRecord(ctx, r, func(r *store.Record) { r.State = store.Removing }); err != nil {
		return err
	}
	var err error
	switch {
	case sb != nil:
		err = sb.Remove(ctx, removeOptions(atoll.RemoveOptions{Volumes: r.Volumes})...)
	case r.Volumes:
		err = l.removeData(ctx, r.ID)
	}
	if err != nil {
		return err
	}
	return l.store.Delete(ctx, r, r.Volumes)
}

// recreateSandbox creates a sandbox that a rebuild has removed.
func (l *Provider) recreateSandbox(ctx context.Context, r *store.Record) error {
	if err := l.takeRecord(ctx, r, func(r *store.Record) { r.Reason = "" }); err != nil {
		return err
	}
	raw, err := l.store.KeepSecret(ctx, l.scope, r.ID, secret.New())
	var sb atoll.Sandbox
	if err == nil {
		sb, err = l.createWithSecret(ctx, &r.Spec, raw)
	}
	if err != nil {
		l.recordFailure(ctx, r, err)
		return err
	}
	l.opts.onStep("remade")
	l.recordPresent(ctx, r, sb)
	return nil
}

// recordFailure records why recreateSandbox failed.
func (l *Provider) recordFailure(ctx context.Context, r *store.Record, why error) {
	r.Reason = strings.ReplaceAll(why.Error(), "\n", "; ") // lists show it on one line
	if err := l.store.Update(context.WithoutCancel(ctx), r); err != nil {
		l.log.Warn("rebuild: cannot record the failure", "sandbox", r.ID, "err", err)
	}
}
