package kubernetes

import (
	"context"
	"iter"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/watchhub"
)

// events publishes the changes of sandboxes, by any program, as the view gets them.
type events struct {
	p   *Provider
	hub *watchhub.Hub

	mu        sync.Mutex
	published map[string]atoll.Status // the last published status of each sandbox
}

func newEvents(p *Provider) *events {
	e := &events{p: p, published: map[string]atoll.Status{}}
	e.hub = watchhub.New(func() ([]atoll.Status, error) { return p.List(context.Background(), atoll.Filter{}) })
	return e
}

// Watch implements atoll.Provider.
func (p *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		if err := p.view.open(ctx, "watch"); err != nil {
			yield(atoll.Event{}, err)
			return
		}
		for ev, err := range p.events.hub.Watch(ctx) {
			if !yield(ev, err) {
				return
			}
		}
	}
}

// publishChange publishes the state of a sandbox with a changed object, if it is new. It reads
// and publishes under one lock, so that states are published in their order.
func (e *events) publishChange(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, known := e.published[id]
	object := e.p.view.recordOf(id)
	if object == nil {
		if known {
			last.State, last.Ready, last.Reason = atoll.StateRemoved, false, ""
			delete(e.published, id)
			e.hub.Publish(last)
		}
		return
	}
	r := e.p.decodeRecord(object)
	if hasEnded(r) || strayPod(r) != nil || !r.DueTime().IsZero() {
		e.p.engine.Sweeper.Wake()
	}
	switch {
	case r.State == atoll.StateCreating:
	case !known || last.State != r.State || !last.Started.Equal(r.Started) || last.Ready != r.Ready:
		e.published[id] = r.Status
		e.hub.Publish(r.Status)
	}
}

// close ends all watches.
func (e *events) close() { e.hub.Close() }
