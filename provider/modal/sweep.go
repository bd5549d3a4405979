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

// sweepSandboxes removes expired sandboxes and the remains of abandoned creations, records the
// ends of others, and refreshes the store. Every provider of the environment sweeps; if two do
// the same work, the second finds it done. It makes no call to Modal before another call of the
// provider has. It returns the time of the next sweep.
func (p *Provider) sweepSandboxes(ctx context.Context) (due time.Time) {
	if !p.isUsed() {
		return due
	}
	all, err := p.takeSurvey(ctx, "sweep") // it also records the ends of sandboxes
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
		p.opts.Log.Warn("sweep: end strays", "err", err)
		due = sweeper.Sooner(due, time.Now().Add(time.Second))
	}
	if err := p.store.refreshAll(ctx, all.revisions); err != nil && ctx.Err() == nil {
		p.opts.Log.Warn("sweep: refresh records", "err", err)
	}
	return due
}

// endStrays ends the instances that belong to no sandbox. A program writes the record before it
// creates the instance, and ends the instance before it removes the record; but it may die in
// between, and Modal may finish late what a program no longer waits for.
func (p *Provider) endStrays(ctx context.Context, all survey) (err error) {
	records := map[string]*record{}
	for _, r := range all.records {
		records[r.ID] = r
	}
	instances := maps.Clone(all.running)
	err = p.addUntagged(ctx, instances)
	for instanceID, info := range instances {
		id := cmp.Or(tagValue(info, tagSession), p.names.sandboxOf(info.GetName()))
		if r := records[id]; id == "" || r != nil && r.ownsInstance(instanceID, info) {
			continue
		}
		at, lookErr := p.store.readLatest(ctx, subjectKey(kindSandbox, id)) // the record in the survey may be older than the list of instances
		if lookErr == nil && (at == nil || at.Deleted || !p.decodeRecord(id, at).ownsInstance(instanceID, info)) {
			lookErr = p.service.terminateInstance(ctx, instanceID)
		}
		err = errors.Join(err, lookErr)
	}
	return err
}

// addUntagged adds the instances without Atoll's tags in the apps that this program uses. A
// separate call sets the tags, and Modal may create an instance so late that no program is left
// to do so.
func (p *Provider) addUntagged(ctx context.Context, instances map[string]*pb.SandboxInfo) (err error) {
	for _, app := range p.apps.cachedValues() {
		all, listErr := p.service.listRunning(ctx, app.AppID, nil)
		err = errors.Join(err, listErr)
		for instanceID, info := range all {
			if tagValue(info, tagOwner) == "" {
				instances[instanceID] = info
			}
		}
	}
	return err
}

// ownsInstance reports whether an instance may belong to the sandbox or to its caretaker.
func (r *record) ownsInstance(instanceID string, info *pb.SandboxInfo) bool {
	switch {
	case tagValue(info, tagRole) == roleCaretaker: // it ends by itself
		return true
	case r.damaged: // unknown
		return true
	case r.note.State == atoll.StateRunning:
		return r.note.Instance == instanceID
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

// removalPollInterval is the time between checks for ended sandboxes that are removed at their
// end.
const removalPollInterval = 10 * time.Second

// isRemovedAtEnd reports whether the sandbox is removed soon after it has ended.
func (r *record) isRemovedAtEnd() bool {
	return r.State == atoll.StateRunning && (r.Spec.AutoRemove || r.Spec.IdleRemove)
}

// dueTime returns the expiry of the sandbox; zero means that it is not known.
func (r *record) dueTime() time.Time {
	if !r.note.LeaseExpires.IsZero() {
		return r.note.LeaseExpires.Add(time.Second)
	}
	return sweeper.Due(&r.Status, r.note.Idle)
}

// removeExpired removes a sandbox with its data volume, if it still is expired: another program
// may have started it. If a program died while it started the sandbox, removeExpired only
// undoes that start.
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
		starter, err := p.claimStart(ctx, r) // it prevents that start from continuing
		if starter == "" || err != nil {
			return err
		}
		return p.releaseStart(r, starter)
	}
	if r.note.State != atoll.StateCreating {
		return p.removeSandbox(ctx, id, atoll.RemoveOptions{Volumes: true})
	}
	if err := p.dropSandbox(ctx, r); err != nil { // its data volume may belong to an earlier sandbox with its id
		return err
	}
	return p.deleteVolumesOf(ctx, r)
}
