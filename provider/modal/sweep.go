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

// Survey implements remote.Runs. It also refreshes the store.
func (b backend) Survey(ctx context.Context) (records []*record, due time.Time, err error) {
	if !b.used.Load() {
		return nil, due, nil
	}
	all, err := b.takeSurvey(ctx, "sweep") // it also records the ends of sandboxes
	if err != nil {
		return nil, due, err
	}
	for _, r := range all.records {
		if isRemovedAtEnd(r) {
			due = sweeper.Earlier(due, time.Now().Add(removalPollInterval))
		}
	}
	if err := b.endStrays(ctx, all); err != nil && ctx.Err() == nil {
		b.opts.Log.Warn("sweep: end strays", "err", err)
		due = sweeper.Earlier(due, time.Now().Add(time.Second))
	}
	if err := b.store.refreshAll(ctx, all.revisions); err != nil && ctx.Err() == nil {
		b.opts.Log.Warn("sweep: refresh records", "err", err)
	}
	return all.records, due, nil
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
		if r := records[id]; id == "" || r != nil && ownsInstance(r, instanceID, info) {
			continue
		}
		at, lookErr := p.store.readLatest(ctx, subjectKey(kindSandbox, id)) // the record in the survey may be older than the list of instances
		if lookErr == nil && (at == nil || at.Deleted || !ownsInstance(p.decodeRecord(id, at), instanceID, info)) {
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
func ownsInstance(r *record, instanceID string, info *pb.SandboxInfo) bool {
	switch {
	case tagValue(info, tagRole) == roleCaretaker: // it ends by itself
		return true
	case isDamaged(r.Object): // unknown
		return true
	case r.Note.State == atoll.StateRunning:
		return r.Note.Run == instanceID
	}
	return r.Note.IsStarting(time.Now())
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
func isRemovedAtEnd(r *record) bool {
	return r.State == atoll.StateRunning && (r.Spec.AutoRemove || r.Spec.IdleRemove)
}
