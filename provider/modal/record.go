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
)

// A note is the stored state of a sandbox.
type note struct {
	Spec       atoll.Spec `json:"spec"`
	CreationID string     `json:"made"` // random id of the creation; another sandbox may have the same id later
	Created    time.Time  `json:"created"`
	// State is StateCreating, StateCreated, the state in which the sandbox ended, or
	// StateRunning: then Modal tells the actual state of the instance.
	State        atoll.State           `json:"state"`
	Instance     string                `json:"life,omitempty"`     // Modal's id of the last instance
	LeaseExpires time.Time             `json:"until,omitzero"`     // expiry of the lease of a creation or a start
	Starter      string                `json:"starter,omitempty"`  // a random id of the program's start that holds the lease
	Stopping     bool                  `json:"stopping,omitempty"` // a call is stopping it, which explains the end of its instance to every program
	Expires      time.Time             `json:"expires,omitzero"`   // its expiry
	Image        string                `json:"image,omitempty"`    // of the last run
	Started      time.Time             `json:"started,omitzero"`   // when the last run began
	Stopped      time.Time             `json:"stopped,omitzero"`   // when it ended, if it has
	Exit         *atoll.Exit           `json:"exit,omitempty"`     // of the main process
	Reason       string                `json:"reason,omitempty"`   // why it ended
	Idle         bool                  `json:"idle,omitempty"`     // it was stopped because it was idle
	Volume       bool                  `json:"volume,omitempty"`   // it has a data volume
	Ports        []atoll.PublishedPort `json:"ports,omitempty"`    // its tunnels
	Stdout       int64                 `json:"stdout,omitempty"`   // bytes that the main process had written when it ended
	Stderr       int64                 `json:"stderr,omitempty"`   // the last of them are stored for a while
}

// A record is the state of a sandbox, as far as it is known.
type record struct {
	atoll.Status
	note     note
	revision *revision // which has the note

	damaged bool // the note cannot be decoded, so nothing is known of the sandbox
}

// findRecord finds a sandbox. Kinds: ErrNotFound, ErrUnavailable, ErrDenied.
func (p *Provider) findRecord(ctx context.Context, op, id string) (*record, error) {
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
	r := p.decodeRecord(id, at)
	if r.note.State != atoll.StateRunning {
		return p.fillStatus(r), nil
	}
	if err := p.recordIfEnded(ctx, r); err != nil {
		return nil, p.wrapError(ctx, op, id, err)
	}
	return p.fillStatus(r), nil
}

// recordIfEnded records the end of a sandbox's run if it has ended. The first program that sees
// the end does so.
func (p *Provider) recordIfEnded(ctx context.Context, r *record) error {
	result, err := p.service.awaitResult(ctx, r.note.Instance, 0)
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
		if r.note.State == atoll.StateRunning && s.running[r.note.Instance] == nil && !p.unreadLogs.has(r.note.Instance) {
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
	s.records = slices.DeleteFunc(s.records, func(r *record) bool { return r.revision == nil })
	for _, r := range s.records {
		p.fillStatus(r)
	}
	return s, nil
}

// maxConcurrentEnds is the number of ended sandboxes whose logs takeSurvey reads at the same
// time.
const maxConcurrentEnds = 16

// recordEndLogged is recordIfEnded for one of many: it logs errors, so that one sandbox does
// not affect the others. It clears r.revision if the sandbox was removed meanwhile.
func (p *Provider) recordEndLogged(ctx context.Context, r *record) {
	err := p.recordIfEnded(ctx, r)
	switch {
	case err == nil || ctx.Err() != nil:
	case atoll.KindOf(err) == atoll.ErrNotFound:
		r.revision = nil
	default:
		p.opts.Log.Warn("cannot find out yet how it ended", "sandbox", r.ID, "err", err)
	}
}

// decodeRecord returns the record in a revision.
func (p *Provider) decodeRecord(id string, at *revision) *record {
	r := &record{revision: at}
	r.ID = id
	if at.Value == nil || json.Unmarshal(at.Value, &r.note) != nil {
		r.note = note{Spec: atoll.Spec{ID: id, Provider: "modal"}, State: atoll.StateFailed, Reason: "its record is damaged: remove it"}
		r.damaged = true
	}
	return r
}

// fillStatus sets the status of a record.
func (p *Provider) fillStatus(r *record) *record {
	st, n := &r.Status, &r.note
	st.Provider, st.Caps, st.Created = "modal", p.opts.caps(), n.Created
	st.Spec, st.State, st.Image, st.Expires = n.Spec, n.State, n.Image, n.Expires
	st.Started, st.Stopped, st.Exit, st.Reason = n.Started, n.Stopped, n.Exit, n.Reason
	if n.State != atoll.StateRunning {
		return r
	}
	st.Ready, st.Ports = true, n.Ports
	for _, port := range n.Ports {
		if port.Port == atoll.AgentPort {
			st.Address = cmp.Or(map[Tunnels]string{TunnelsTLS: "https://"}[p.opts.Tunnels], "http://") + port.Address
		}
	}
	return r
}

// updateRecord calls fn to change the note of a sandbox, and stores the result. If fn returns
// an error, nothing changes. updateRecord calls fn again if another program has written
// meanwhile. Kinds: ErrNotFound (the sandbox does not exist, or another one has its id), and
// those of fn.
func (p *Provider) updateRecord(ctx context.Context, r *record, fn func(n *note) error) error {
	at, n := r.revision, r.note
	for {
		if err := fn(&n); err != nil {
			return err
		}
		written, err := p.store.writeNext(ctx, kindSandbox, r.ID, at, &n)
		if err == nil {
			r.revision, r.note = written, n
			p.events.publishChange(r.ID, p.fillStatus(r))
			return nil
		}
		if !errors.Is(err, errWrittenElsewhere) {
			return err
		}
		if at, err = p.store.readLatest(ctx, subjectKey(kindSandbox, r.ID)); err != nil {
			return err
		}
		if at == nil || at.Deleted {
			return atoll.E("write", r.ID, atoll.ErrNotFound, nil)
		}
		now := p.decodeRecord(r.ID, at)
		if now.note.CreationID != r.note.CreationID {
			return atoll.E("write", r.ID, atoll.ErrNotFound, nil)
		}
		n = now.note
	}
}

// requireRunning returns the error of a call that needs a running sandbox; nil if it runs.
func requireRunning(op string, st *atoll.Status) error {
	switch st.State {
	case atoll.StateRunning:
		return nil
	case atoll.StateFailed:
		return atoll.Errorf(op, st.ID, atoll.ErrStopped, "sandbox has failed: %s", st.Reason)
	}
	return atoll.E(op, st.ID, atoll.ErrStopped, nil)
}
