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

// events tells of changes, whoever made them: the engine's own events say that
// there is one, and then the sandbox is looked at.
type events struct {
	p      *Provider
	hub    *watchhub.Hub
	work   sync.WaitGroup
	ctx    context.Context // ends with the provider
	cancel context.CancelFunc
	once   sync.Once

	mu        sync.Mutex
	listening bool                    // somebody has listened
	published map[string]atoll.Status // what was told of each sandbox
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

// startListening begins to listen to the engine, for the first who wants to know.
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

// retryDelay is how long after the engine was lost it is looked for again.
const retryDelay = time.Second

// followEvents listens until the provider is closed.
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

// listenOnce listens until the engine is lost. It tells begun, unless that is nil, how it
// began.
func (e *events) listenOnce(begun chan<- error) {
	ctx, enough := context.WithCancel(e.ctx)
	defer enough()
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

// publishAll looks at every sandbox, after events were lost.
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

// publishChange looks at the sandbox and tells what is new. Looking and telling are
// one step, so that states are told in the order in which they were.
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

// publishOwnChange looks at a sandbox that this provider has changed, before it goes on: one that is
// made and removed again at once is gone when the engine's event of its making arrives,
// and Podman reads its events from a file only now and then.
func (e *events) publishOwnChange(ctx context.Context, id string) {
	e.mu.Lock()
	on := e.listening
	e.mu.Unlock()
	if on && ctx.Err() == nil {
		e.publishChange(id)
	}
}

// close ends all watches and waits for what they use.
func (e *events) close() {
	e.hub.Close()
	e.cancel()
	e.work.Wait()
}
