package registry

import (
	"context"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/secret"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// An outcome says what became of a record.
type outcome struct {
	found  Found // "" when it was as it should be
	done   Done
	reason string
	gone   bool // it is no longer written down
}

// settle compares a record, whose gate is held, with what the provider says, and
// brings to its end what was cut short; when dry it only says what that is.
// Kinds: ErrConflict (another program is at work on it). An error of the provider,
// other than that there is no such sandbox, settles nothing.
func (l *Provider) settle(ctx context.Context, r *store.Record, dry bool) (outcome, error) {
	if err := l.free(ctx, r); err != nil {
		return outcome{}, err
	}
	sb, err := l.ProviderLayer.Get(ctx, r.ID)
	if notFoundIsFine(err) != nil {
		return outcome{}, err
	}
	out := l.judge(r, sb != nil)
	if out.done == DoneFinished && r.State == store.Creating {
		st, err := sb.Status(ctx)
		if err != nil {
			return outcome{}, err
		}
		if st.State == atoll.StateCreating { // nobody is left to go on with it
			out.done, out.gone = DoneRemoved, true
		}
	}
	if out.done == "" || dry {
		return out, nil
	}
	return out, l.finish(ctx, r, sb, out)
}

// judge says what is to become of a record whose sandbox is there, or not.
func (l *Provider) judge(r *store.Record, there bool) outcome {
	switch {
	case r.State == store.Removing:
		return outcome{found: FoundUnfinished, done: DoneFinished, reason: "its removal was cut short", gone: true}
	case r.State == store.Rebuilding && there:
		return outcome{found: FoundUnfinished, done: DoneFinished, reason: "its rebuild was cut short"}
	case r.State == store.Rebuilding && r.Reason != "":
		return outcome{found: FoundUnfinished, done: DoneRebuilt, reason: "its rebuild failed: " + r.Reason}
	case r.State == store.Rebuilding:
		return outcome{found: FoundUnfinished, done: DoneRebuilt, reason: "its rebuild was cut short"}
	case r.State == store.Creating && there:
		return outcome{found: FoundUnfinished, done: DoneFinished, reason: "its creation was cut short"}
	case r.State == store.Creating:
		return outcome{found: FoundUnfinished, done: DoneForgotten, reason: "its creation was cut short", gone: true}
	case there:
		return outcome{}
	case r.Spec.IdleRemove || isOver(r):
		return outcome{done: DoneForgotten, gone: true}
	}
	return outcome{found: FoundMissing, done: DoneForgotten, reason: "the provider has it no longer", gone: true}
}

// isOver reports whether a sandbox that is not there is so because its Spec says
// so: it went with its command, or its time is over.
func isOver(r *store.Record) bool {
	s := &r.Spec
	return s.AutoRemove || s.TTL > 0 && time.Since(r.Created) >= time.Duration(s.TTL)
}

// finish does what judge said.
func (l *Provider) finish(ctx context.Context, r *store.Record, sb atoll.Sandbox, out outcome) error {
	switch {
	case out.done == DoneForgotten && r.State == store.Present && !isOver(r):
		return l.store.Forget(ctx, r) // it may be back, when the right backend is asked again
	case out.done == DoneForgotten && r.State == store.Creating:
		if err := l.dropMade(ctx, r); err != nil {
			return err
		}
		return l.store.Delete(ctx, r, false)
	case out.done == DoneForgotten:
		return l.store.Delete(ctx, r, false) // a secret goes with the data volume
	case out.gone:
		return l.finishRemoval(ctx, r, sb)
	case out.done == DoneRebuilt:
		return l.remake(ctx, r)
	}
	l.present(ctx, r, sb)
	return nil
}

// dropMade removes the data volume of a sandbox that was never made, if there was none
// before: else another one of this id has left it.
func (l *Provider) dropMade(ctx context.Context, r *store.Record) error {
	if err := l.take(ctx, r, func(*store.Record) {}); err != nil { // who makes one of that id now waits for us
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
			err = atoll.RemoveVolume(ctx, l.Provider, v.Project, v.Name)
		}
	}
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return nil
	}
	return err
}

// finishRemoval removes what is left of a sandbox; sb is nil when it is gone.
func (l *Provider) finishRemoval(ctx context.Context, r *store.Record, sb atoll.Sandbox) error {
	if err := l.take(ctx, r, func(r *store.Record) { r.State = store.Removing }); err != nil {
		return err
	}
	var err error
	switch {
	case sb != nil:
		err = sb.Remove(ctx, options(atoll.RemoveOptions{Volumes: r.Volumes})...)
	case r.Volumes:
		err = l.removeData(ctx, r.ID)
	}
	if err != nil {
		return err
	}
	return l.store.Delete(ctx, r, r.Volumes)
}

// remake makes a sandbox again that was removed for that.
func (l *Provider) remake(ctx context.Context, r *store.Record) error {
	if err := l.take(ctx, r, func(r *store.Record) { r.Reason = "" }); err != nil {
		return err
	}
	raw, err := l.store.KeepSecret(ctx, l.scope, r.ID, secret.New())
	var sb atoll.Sandbox
	if err == nil {
		sb, err = l.make(ctx, &r.Spec, raw)
	}
	if err != nil {
		l.fell(ctx, r, err)
		return err
	}
	l.opts.step("remade")
	l.present(ctx, r, sb)
	return nil
}

// fell writes down why a sandbox could not be made again.
func (l *Provider) fell(ctx context.Context, r *store.Record, why error) {
	r.Reason = strings.ReplaceAll(why.Error(), "\n", "; ") // it stands in lists
	if err := l.store.Update(context.WithoutCancel(ctx), r); err != nil {
		l.log.Warn("rebuild: why it failed is not written down", "sandbox", r.ID, "err", err)
	}
}
