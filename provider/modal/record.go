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

// A note is what is written down of a sandbox.
type note struct {
	Spec    atoll.Spec `json:"spec"`
	Made    string     `json:"made"` // tells it from others that had its id before
	Created time.Time  `json:"created"`
	// State is StateCreating, StateCreated, StateRunning of one whose life at Modal says
	// how it is, or how that has come to its end.
	State    atoll.State           `json:"state"`
	Life     string                `json:"life,omitempty"`     // Modal's id of its last life
	Until    time.Time             `json:"until,omitzero"`     // while it is being made, or started: nobody is at it any more after that
	Starter  string                `json:"starter,omitempty"`  // who starts it: tells that start from others
	Stopping bool                  `json:"stopping,omitempty"` // somebody stops it: that is why its life ends, whoever sees it first
	Expires  time.Time             `json:"expires,omitzero"`   // when its time is over
	Image    string                `json:"image,omitempty"`    // of its last life
	Started  time.Time             `json:"started,omitzero"`   // its last life was
	Stopped  time.Time             `json:"stopped,omitzero"`   // it was, of one that has come to its end
	Exit     *atoll.Exit           `json:"exit,omitempty"`     // of its main process
	Reason   string                `json:"reason,omitempty"`   // of its end
	Idle     bool                  `json:"idle,omitempty"`     // it was stopped because nobody used it
	Volume   bool                  `json:"volume,omitempty"`   // it has a data volume
	Ports    []atoll.PublishedPort `json:"ports,omitempty"`    // its tunnels
	Stdout   int64                 `json:"stdout,omitempty"`   // how much its main process had written when it ended
	Stderr   int64                 `json:"stderr,omitempty"`   // of which the last is kept for a while
}

// A record is what is known of a sandbox.
type record struct {
	atoll.Status
	note note
	page *revision // on which it is written

	damaged bool // what is written there, so that nothing is known of it
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

// recordIfEnded writes down how the life of a sandbox has come to its end, if it has: whoever sees
// that first.
func (p *Provider) recordIfEnded(ctx context.Context, r *record) error {
	result, err := p.service.awaitResult(ctx, r.note.Life, 0)
	if result == nil || err != nil {
		return err
	}
	return p.recordEnd(ctx, r, result)
}

// A survey is what there is.
type survey struct {
	records []*record                  // of all sandboxes, as they are now
	alive   map[string]*pb.SandboxInfo // the lives that go on, by their ids
	pages   map[string]*revision       // the book's
}

// allRecords are all sandboxes.
func (p *Provider) allRecords(ctx context.Context, op string) ([]*record, error) {
	s, err := p.takeSurvey(ctx, op)
	return s.records, err
}

// takeSurvey looks at all there is: two calls, and some for each sandbox that has ended since
// the last one.
func (p *Provider) takeSurvey(ctx context.Context, op string) (s survey, err error) {
	if err := p.open(ctx, op); err != nil {
		return s, err
	}
	s.alive, err = p.service.listRunning(ctx, "", map[string]string{tagOwner: p.opts.Prefix}) // first: whose page is older has lived
	if err == nil {
		s.pages, err = p.store.readAllLatest(ctx)
	}
	if err != nil {
		return s, p.wrapError(ctx, op, "", err)
	}
	var work sync.WaitGroup
	places := make(chan struct{}, maxConcurrentEnds)
	for of, at := range s.pages {
		id, ok := strings.CutPrefix(of, kindSandbox+"/")
		if !ok || at.Deleted {
			continue
		}
		r := p.decodeRecord(id, at)
		s.records = append(s.records, r)
		if r.note.State == atoll.StateRunning && s.alive[r.note.Life] == nil && !p.unreadLogs.has(r.note.Life) {
			work.Go(func() { // side by side: a log may take long, or not come at all
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
	s.records = slices.DeleteFunc(s.records, func(r *record) bool { return r.page == nil })
	for _, r := range s.records {
		p.fillStatus(r)
	}
	return s, nil
}

// maxConcurrentEnds is of how many sandboxes it is found out at the same time how they have ended.
const maxConcurrentEnds = 16

// recordEndLogged is ended, for one of many, which the others are not to suffer from. One
// that was removed meanwhile has no page afterwards.
func (p *Provider) recordEndLogged(ctx context.Context, r *record) {
	err := p.recordIfEnded(ctx, r)
	switch {
	case err == nil || ctx.Err() != nil:
	case atoll.KindOf(err) == atoll.ErrNotFound:
		r.page = nil
	default:
		p.opts.Log.Warn("it has ended, and how cannot be told yet", "sandbox", r.ID, "err", err)
	}
}

// decodeRecord reads what is written of a sandbox.
func (p *Provider) decodeRecord(id string, at *revision) *record {
	r := &record{page: at}
	r.ID = id
	if at.Value == nil || json.Unmarshal(at.Value, &r.note) != nil {
		r.note = note{Spec: atoll.Spec{ID: id, Provider: "modal"}, State: atoll.StateFailed, Reason: "its record is damaged: remove it"}
		r.damaged = true
	}
	return r
}

// fillStatus fills in the status.
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

// updateRecord writes down what fn makes of the note of a sandbox, unless fn returns an error.
// fn may be called more than once: others write, too. Kinds: ErrNotFound (it is not there,
// or another one by now), and those of fn.
func (p *Provider) updateRecord(ctx context.Context, r *record, fn func(n *note) error) error {
	at, n := r.page, r.note
	for {
		if err := fn(&n); err != nil {
			return err
		}
		written, err := p.store.writeNext(ctx, kindSandbox, r.ID, at, &n)
		if err == nil {
			r.page, r.note = written, n
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
		if now.note.Made != r.note.Made {
			return atoll.E("write", r.ID, atoll.ErrNotFound, nil)
		}
		n = now.note
	}
}

// requireRunning is the error of what needs a running sandbox.
func requireRunning(op string, st *atoll.Status) error {
	switch st.State {
	case atoll.StateRunning:
		return nil
	case atoll.StateFailed:
		return atoll.Errorf(op, st.ID, atoll.ErrStopped, "sandbox has failed: %s", st.Reason)
	}
	return atoll.E(op, st.ID, atoll.ErrStopped, nil)
}
