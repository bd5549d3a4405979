package modal

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/sweeper"
)

// sweepSandboxes removes the sandboxes whose time is over, and what is left of those that were never
// finished, writes down how others have ended, and keeps what is written from being
// forgotten. Any provider of the same environment does it: what one has done, another finds
// done. Modal is asked nothing before somebody else has asked.
func (p *Provider) sweepSandboxes(ctx context.Context) (due time.Time) {
	if !p.isUsed() {
		return due
	}
	all, err := p.takeSurvey(ctx, "sweep") // and those that have ended are written down
	if err != nil {
		if ctx.Err() == nil {
			p.opts.Log.Warn("sweep", "err", err)
		}
		return due
	}
	for _, r := range all.records {
		t := r.dueTime()
		if t.IsZero() || time.Now().Before(t) {
			if due = sweeper.Sooner(due, t); r.isRemovedAtEnd() {
				due = sweeper.Sooner(due, time.Now().Add(removalPollInterval))
			}
			continue
		}
		if err := p.removeExpired(ctx, r.ID); err != nil && ctx.Err() == nil {
			p.opts.Log.Warn("sweep", "sandbox", r.ID, "err", err)
			due = sweeper.Sooner(due, time.Now().Add(time.Second))
		}
	}
	if err := p.endStrays(ctx, all); err != nil && ctx.Err() == nil {
		p.opts.Log.Warn("sweep: what belongs to no sandbox", "err", err)
		due = sweeper.Sooner(due, time.Now().Add(time.Second))
	}
	if err := p.store.refreshAll(ctx, all.pages); err != nil && ctx.Err() == nil {
		p.opts.Log.Warn("sweep: what is written may be forgotten", "err", err)
	}
	return due
}

// endStrays ends the lives that are no sandbox's: who has begun one writes of the sandbox
// first, and who removes that ends it first, but he may die between, and Modal may do late
// what somebody has stopped waiting for.
func (p *Provider) endStrays(ctx context.Context, all survey) (err error) {
	records := map[string]*record{}
	for _, r := range all.records {
		records[r.ID] = r
	}
	lives := maps.Clone(all.alive)
	err = p.addUntagged(ctx, lives)
	for life, info := range lives {
		id := cmp.Or(tagValue(info, tagSession), p.names.sandboxOf(info.GetName()))
		if r := records[id]; id == "" || r != nil && r.ownsInstance(life, info) {
			continue
		}
		at, lookErr := p.store.readLatest(ctx, subjectKey(kindSandbox, id)) // what is older than the list of those that live, says nothing of them
		if lookErr == nil && (at == nil || at.Deleted || !p.decodeRecord(id, at).ownsInstance(life, info)) {
			lookErr = p.service.terminateInstance(ctx, life)
		}
		err = errors.Join(err, lookErr)
	}
	return err
}

// addUntagged adds to lives those without our tags, in the apps that this program uses: tags are
// set by a call of their own, and Modal may make a life so late that nobody is there to do so.
func (p *Provider) addUntagged(ctx context.Context, lives map[string]*pb.SandboxInfo) (err error) {
	for _, app := range p.apps.cachedValues() {
		all, listErr := p.service.listRunning(ctx, app.AppID, nil)
		err = errors.Join(err, listErr)
		for life, info := range all {
			if tagValue(info, tagOwner) == "" {
				lives[life] = info
			}
		}
	}
	return err
}

// ownsInstance reports whether a life may be the sandbox's, or its caretaker's.
func (r *record) ownsInstance(life string, info *pb.SandboxInfo) bool {
	switch {
	case tagValue(info, tagRole) == roleCaretaker: // it ends by itself
		return true
	case r.damaged: // whether it is, nobody can tell
		return true
	case r.note.State == atoll.StateRunning:
		return r.note.Life == life
	}
	return r.isStarting()
}

func tagValue(info *pb.SandboxInfo, name string) string {
	for _, tag := range info.GetTags() {
		if tag.GetTagName() == name {
			return tag.GetTagValue()
		}
	}
	return ""
}

// removalPollInterval is how often it is looked whether sandboxes have ended that are to be removed
// then.
const removalPollInterval = 10 * time.Second

// isRemovedAtEnd reports whether the sandbox is removed soon after it has ended.
func (r *record) isRemovedAtEnd() bool {
	return r.State == atoll.StateRunning && (r.Spec.AutoRemove || r.Spec.IdleRemove)
}

// dueTime is when the sandbox's time is over; zero means that it is not known.
func (r *record) dueTime() time.Time {
	if !r.note.Until.IsZero() {
		return r.note.Until.Add(time.Second)
	}
	return sweeper.Due(&r.Status, r.note.Idle)
}

// removeExpired removes a sandbox with its data volume, if it is still due: it may have been
// started again. One whose starter has died is only freed from what he has begun.
func (p *Provider) removeExpired(ctx context.Context, id string) error {
	release, err := p.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	r, err := p.findRecord(ctx, "remove", id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if t := r.dueTime(); t.IsZero() || time.Now().Before(t) {
		return nil
	}
	if r.note.Starter != "" {
		starter, err := p.claimStart(ctx, r) // so that he does not go on
		if starter == "" || err != nil {
			return err
		}
		return p.releaseStart(r, starter)
	}
	if r.note.State != atoll.StateCreating {
		return p.removeSandbox(ctx, id, atoll.RemoveOptions{Volumes: true})
	}
	if err := p.dropSandbox(ctx, r); err != nil { // its data volume may be that of a sandbox before it
		return err
	}
	return p.deleteVolumesOf(ctx, r)
}
