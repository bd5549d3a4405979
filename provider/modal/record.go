package modal

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// A record is the state of a sandbox; the run of a note is the id of an instance.
type (
	record = remote.Record[*revision]
	note   = remote.Note
)

// A backend implements remote.Backend.
type backend struct{ *Provider }

// Open implements remote.Backend.
func (b backend) Open(ctx context.Context, op string) error { return b.open(ctx, op) }

// WrapError implements remote.Backend.
func (b backend) WrapError(ctx context.Context, op, id string, err error) error {
	return b.wrapError(ctx, op, id, err)
}

// Find implements remote.Records.
func (b backend) Find(ctx context.Context, op, id string, as remote.Freshness) (*record, error) {
	r, err := b.readRecord(ctx, op, id)
	if err != nil || as == remote.Stored {
		return r, err
	}
	if r.Note.State == atoll.StateRunning {
		if err := b.recordIfEnded(ctx, r); err != nil {
			return nil, b.wrapError(ctx, op, id, err)
		}
	}
	return b.fillStatus(r), nil
}

// findRecord finds a sandbox, with its state now. Kinds: ErrNotFound, ErrUnavailable, ErrDenied.
func (p *Provider) findRecord(ctx context.Context, op, id string) (*record, error) {
	return backend{p}.Find(ctx, op, id, remote.Latest)
}

// readRecord returns the record of a sandbox as the store has it. Kinds: ErrNotFound,
// ErrUnavailable, ErrDenied.
func (p *Provider) readRecord(ctx context.Context, op, id string) (*record, error) {
	if err := p.open(ctx, op); err != nil {
		return nil, err
	}
	at, err := p.store.readLatest(ctx, subjectKey(kindSandbox, id))
	if err != nil {
		return nil, p.wrapError(ctx, op, id, err)
	}
	if at == nil || at.Deleted {
		return nil, atoll.E(op, id, atoll.ErrNotFound, nil)
	}
	return p.fillStatus(p.decodeRecord(id, at)), nil
}

// List implements remote.Records.
func (b backend) List(ctx context.Context, op string) ([]*record, error) {
	return b.allRecords(ctx, op)
}

// recordIfEnded records the end of a sandbox's run if it has ended. The first program that sees
// the end does so.
func (p *Provider) recordIfEnded(ctx context.Context, r *record) error {
	result, err := p.service.awaitResult(ctx, r.Note.Run, 0)
	if result == nil || err != nil {
		return err
	}
	return p.recordEnd(ctx, r, result)
}

// A survey has all sandboxes and instances.
type survey struct {
	records   []*record                  // of all sandboxes, with their state now
	running   map[string]*pb.SandboxInfo // the running instances by id
	revisions map[string]*revision       // of all subjects in the store
}

// allRecords returns the records of all sandboxes.
func (p *Provider) allRecords(ctx context.Context, op string) ([]*record, error) {
	s, err := p.takeSurvey(ctx, op)
	return s.records, err
}

// takeSurvey returns all sandboxes and instances. It makes two calls, and some more for each
// sandbox that has ended since the last survey.
func (p *Provider) takeSurvey(ctx context.Context, op string) (s survey, err error) {
	if err := p.open(ctx, op); err != nil {
		return s, err
	}
	s.running, err = p.service.listRunning(ctx, "", map[string]string{tagOwner: p.opts.Prefix}) // first: an instance that is missing here, but is in a later record, has ended
	if err == nil {
		s.revisions, err = p.store.readAllLatest(ctx)
	}
	if err != nil {
		return s, p.wrapError(ctx, op, "", err)
	}
	var work sync.WaitGroup
	places := make(chan struct{}, maxConcurrentEnds)
	for of, at := range s.revisions {
		id, ok := strings.CutPrefix(of, kindSandbox+"/")
		if !ok || at.Deleted {
			continue
		}
		r := p.decodeRecord(id, at)
		s.records = append(s.records, r)
		if r.Note.State == atoll.StateRunning && s.running[r.Note.Run] == nil && !p.unreadLogs.has(r.Note.Run) {
			work.Go(func() { // concurrently: a log may take long, or not come at all
				places <- struct{}{}
				defer func() { <-places }()
				p.recordEndLogged(ctx, r)
			})
		}
	}
	work.Wait()
	if ctx.Err() != nil {
		return s, p.wrapError(ctx, op, "", ctx.Err())
	}
	s.records = slices.DeleteFunc(s.records, func(r *record) bool { return r.Object == nil })
	for _, r := range s.records {
		p.fillStatus(r)
	}
	return s, nil
}

// maxConcurrentEnds is the number of ended sandboxes whose logs takeSurvey reads at the same
// time.
const maxConcurrentEnds = 16

// recordEndLogged is recordIfEnded for one of many: it logs errors, so that one sandbox does
// not affect the others. It clears r.Object if the sandbox was removed meanwhile.
func (p *Provider) recordEndLogged(ctx context.Context, r *record) {
	err := p.recordIfEnded(ctx, r)
	switch {
	case err == nil || ctx.Err() != nil:
	case atoll.KindOf(err) == atoll.ErrNotFound:
		r.Object = nil
	default:
		p.opts.Log.Warn("cannot find out yet how it ended", "sandbox", r.ID, "err", err)
	}
}

// decodeRecord returns the record in a revision.
func (p *Provider) decodeRecord(id string, at *revision) *record {
	r := &record{Object: at}
	r.ID = id
	if json.Unmarshal(at.Value, &r.Note) != nil { // also without a value
		r.Note = note{Spec: atoll.Spec{ID: id, Provider: "modal"}, State: atoll.StateFailed, Reason: "its record is damaged: remove it"}
	}
	return r
}

// isDamaged reports whether the note in a revision cannot be decoded, so that nothing is known of
// the sandbox.
func isDamaged(at *revision) bool {
	return json.Unmarshal(at.Value, &note{}) != nil
}

// fillStatus sets the status of a record.
func (p *Provider) fillStatus(r *record) *record {
	r.FillStatus("modal", p.opts.caps())
	if r.Note.State != atoll.StateRunning {
		return r
	}
	r.Ready, r.Ports = true, r.Note.Ports
	for _, port := range r.Note.Ports {
		if port.Port == atoll.AgentPort {
			r.Address = cmp.Or(map[Tunnels]string{TunnelsTLS: "https://"}[p.opts.Tunnels], "http://") + port.Address
		}
	}
	return r
}

// Insert implements remote.Records.
func (b backend) Insert(ctx context.Context, r *record) error {
	before, err := b.store.readLatest(ctx, subjectKey(kindSandbox, r.ID))
	if err != nil {
		return err
	}
	if before != nil && !before.Deleted {
		return remote.ErrDoneElsewhere
	}
	r.Object, err = b.store.writeNext(ctx, kindSandbox, r.ID, before, &r.Note)
	if errors.Is(err, errWrittenElsewhere) {
		return remote.ErrDoneElsewhere
	}
	return err
}

// Update implements remote.Records. It publishes the change.
func (b backend) Update(ctx context.Context, r *record, fn func(n *note) error) error {
	at := r.Object
	for {
		if isDamaged(at) {
			return atoll.Errorf("write", r.ID, atoll.ErrInternal, "its record is damaged: remove the sandbox")
		}
		n := b.decodeRecord(r.ID, at).Note
		if n.CreationID != r.Note.CreationID {
			return atoll.E("write", r.ID, atoll.ErrNotFound, nil)
		}
		if err := fn(&n); err != nil {
			return err
		}
		if err := b.storeOutput(ctx, r, n.Printed); err != nil {
			return err
		}
		written, err := b.store.writeNext(ctx, kindSandbox, r.ID, at, &n)
		if err == nil {
			n.Printed = nil
			r.Object, r.Note = written, n
			b.events.publishChange(r.ID, b.fillStatus(r))
			return nil
		}
		if !errors.Is(err, errWrittenElsewhere) {
			return err
		}
		if at, err = b.store.readLatest(ctx, subjectKey(kindSandbox, r.ID)); err != nil {
			return err
		}
		if at == nil || at.Deleted {
			return atoll.E("write", r.ID, atoll.ErrNotFound, nil)
		}
	}
}

// Delete implements remote.Records.
func (b backend) Delete(ctx context.Context, r *record) error {
	if err := b.dropOutput(ctx, r); err != nil {
		return err
	}
	for {
		_, err := b.store.writeNext(ctx, kindSandbox, r.ID, r.Object, nil)
		if !errors.Is(err, errWrittenElsewhere) {
			if err == nil {
				b.events.publishChange(r.ID, nil)
			}
			return err
		}
		at, err := b.store.readLatest(ctx, subjectKey(kindSandbox, r.ID))
		if at == nil || at.Deleted || err != nil {
			return err
		}
		if b.decodeRecord(r.ID, at).Note.CreationID != r.Note.CreationID {
			return nil // another sandbox has the id now
		}
		r.Object = at
	}
}

// AwaitChange implements remote.Records. Modal sends no events, so it waits a little.
func (b backend) AwaitChange(ctx context.Context, _ *record) error {
	select {
	case <-time.After(b.opts.leaseTTL / 30):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
