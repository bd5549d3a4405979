package docker

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/watchhub"
)

// events publishes the changes of sandboxes, including those by other programs. The engine's
// events only tell which sandbox has changed; its new state comes from findRecord.
type events struct {
	p      *Provider
	hub    *watchhub.Hub
	work   sync.WaitGroup
	ctx    context.Context // ends when the provider is closed
	cancel context.CancelFunc
	once   sync.Once

	mu        sync.Mutex
	listening bool                    // set when listenOnce has run for the first time
	published map[string]atoll.Status // the last published status of each sandbox
}

func newEvents(p *Provider) *events {
	e := &events{p: p, published: map[string]atoll.Status{}}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.hub = watchhub.New(func() ([]atoll.Status, error) { return p.List(e.ctx, atoll.Filter{}) })
	return e
}

// Watch implements atoll.Provider.
func (p *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		if err := p.events.startListening(ctx); err != nil {
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

// startListening makes the first call listen to the engine's events.
func (e *events) startListening(ctx context.Context) error {
	if err := e.p.pingEngine(ctx); err != nil {
		return e.p.wrapError(ctx, "watch", "", err)
	}
	var err error
	e.once.Do(func() {
		begun := make(chan error, 1)
		e.work.Go(func() { e.followEvents(begun) })
		err = <-begun
	})
	return err
}

// retryDelay is the pause before the next attempt to reach an engine.
const retryDelay = time.Second

// followEvents listens until the provider is closed. If begun is not nil, it gets the first
// result of publishAll.
func (e *events) followEvents(begun chan<- error) {
	for e.ctx.Err() == nil {
		e.listenOnce(begun)
		begun = nil
		select {
		case <-e.ctx.Done():
		case <-time.After(retryDelay):
		}
	}
}

// listenOnce listens until the connection to the engine breaks. If begun is not nil, it gets the
// result of publishAll.
func (e *events) listenOnce(begun chan<- error) {
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	stream := e.p.engine.Events(ctx, client.EventsListOptions{Filters: e.p.names.selectOwn().Add("type", "container")})
	err := e.publishAll()
	e.mu.Lock()
	e.listening = true
	e.mu.Unlock()
	if begun != nil {
		begun <- err
	}
	if err != nil {
		e.hub.Interrupt(err)
	}
	for err == nil {
		select {
		case m := <-stream.Messages:
			e.publishChange(m.Actor.Attributes[labelSession])
		case err = <-stream.Err:
		}
	}
}

// publishAll publishes the changes of all sandboxes, after events may have been lost.
func (e *events) publishAll() error {
	list, err := e.p.List(e.ctx, atoll.Filter{})
	if err != nil {
		return err
	}
	ids := map[string]bool{}
	for _, st := range list {
		ids[st.ID] = true
	}
	e.mu.Lock()
	for id := range e.published {
		ids[id] = true
	}
	e.mu.Unlock()
	for id := range ids {
		e.publishChange(id)
	}
	return nil
}

// publishChange looks up a sandbox and publishes what has changed. It holds the lock for both,
// so that states are published in their order.
func (e *events) publishChange(id string) {
	if id == "" {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r, err := e.p.findRecord(e.ctx, "watch", id)
	last, known := e.published[id]
	switch {
	case atoll.KindOf(err) == atoll.ErrNotFound:
		if known {
			last.State, last.Ready, last.Reason = atoll.StateRemoved, false, ""
			delete(e.published, id)
			e.hub.Publish(last)
		}
	case err != nil:
		e.hub.Interrupt(err)
	case r.State == atoll.StateCreating:
	case !known || last.State != r.State || !last.Started.Equal(r.Started):
		e.published[id] = r.Status
		e.hub.Publish(r.Status)
	}
}

// publishOwnChange publishes a change that this provider has made, before its caller goes on.
// Without it, a sandbox that is removed right after its creation would be gone when the engine's
// event arrives; and Podman's events may arrive late.
func (e *events) publishOwnChange(ctx context.Context, id string) {
	e.mu.Lock()
	on := e.listening
	e.mu.Unlock()
	if on && ctx.Err() == nil {
		e.publishChange(id)
	}
}

// close ends all watches, and waits for the goroutines.
func (e *events) close() {
	e.hub.Close()
	e.cancel()
	e.work.Wait()
}
