package modal

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/watchhub"
)

// pollInterval is the time between polls of Modal while a caller watches: Modal sends no
// events. Changes by this program are published at once.
const pollInterval = 2 * time.Second

// events publishes the changes of sandboxes, by any program, as they are seen.
type events struct {
	p    *Provider
	hub  *watchhub.Hub
	runs sync.WaitGroup
	quit context.CancelFunc
	ctx  context.Context

	mu        sync.Mutex
	watchers  int
	wake      chan struct{} // a caller watches or has stopped watching
	published map[string]publishedStatus
	changes   map[string]bool // sandboxes that this program has changed during publishAll; nil outside of it
}

func newEvents(p *Provider) *events {
	e := &events{p: p, wake: make(chan struct{}, 1), published: map[string]publishedStatus{}}
	e.ctx, e.quit = context.WithCancel(context.Background())
	e.hub = watchhub.New(func() ([]atoll.Status, error) { return p.List(e.ctx, atoll.Filter{}) })
	e.runs.Go(e.pollChanges)
	return e
}

// Watch implements atoll.Provider.
func (p *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		if err := p.open(ctx, "watch"); err != nil {
			yield(atoll.Event{}, err)
			return
		}
		p.events.addWatchers(1)
		defer p.events.addWatchers(-1)
		for ev, err := range p.events.hub.Watch(ctx) {
			if !yield(ev, err) {
				return
			}
		}
	}
}

func (e *events) addWatchers(more int) {
	e.mu.Lock()
	e.watchers += more
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// pollChanges polls all sandboxes from time to time while a caller watches.
func (e *events) pollChanges() {
	for {
		e.mu.Lock()
		idle := e.watchers == 0
		e.mu.Unlock()
		if idle {
			select {
			case <-e.wake:
				continue
			case <-e.ctx.Done():
				return
			}
		}
		if err := e.publishAll(); err != nil && e.ctx.Err() == nil {
			e.hub.Interrupt(err)
		}
		select {
		case <-time.After(e.p.opts.pollInterval):
		case <-e.ctx.Done():
			return
		}
	}
}

// publishAll publishes what is new of all sandboxes. It skips those that this program changes
// meanwhile: their newer state is already published.
func (e *events) publishAll() error {
	e.mu.Lock()
	e.changes = map[string]bool{}
	e.mu.Unlock()
	all, err := e.p.allRecords(e.ctx, "watch")
	e.mu.Lock()
	defer e.mu.Unlock()
	changed := e.changes
	e.changes = nil
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, r := range all {
		there[r.ID] = true
		if !changed[r.ID] {
			e.publishRecord(r)
		}
	}
	for id := range e.published {
		if !there[id] && !changed[id] {
			e.publishRemoved(id)
		}
	}
	return nil
}

// publishChange publishes a record that this program has just written; a nil r means that the
// sandbox was removed.
func (e *events) publishChange(id string, r *record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.changes != nil {
		e.changes[id] = true
	}
	if r == nil {
		e.publishRemoved(id)
		return
	}
	e.publishRecord(r)
}

// publishRecord publishes the state of a sandbox if it is new. The caller holds e.mu.
func (e *events) publishRecord(r *record) {
	last, known := e.published[r.ID]
	switch {
	case r.State == atoll.StateCreating:
	case known && last.revision > r.Object.Number: // a newer state is published
	case !known || last.State != r.State || !last.Started.Equal(r.Started) || last.Ready != r.Ready:
		e.published[r.ID] = publishedStatus{r.Status, r.Object.Number}
		e.hub.Publish(r.Status)
	}
}

// publishRemoved publishes the removal of a sandbox. The caller holds e.mu.
func (e *events) publishRemoved(id string) {
	last, known := e.published[id]
	if !known {
		return
	}
	delete(e.published, id)
	last.State, last.Ready, last.Reason = atoll.StateRemoved, false, ""
	e.hub.Publish(last.Status)
}

// publishedStatus is the last published state of a sandbox, and the number of its revision.
type publishedStatus struct {
	atoll.Status
	revision uint64
}

// close ends all watches.
func (e *events) close() {
	e.quit()
	e.runs.Wait()
	e.hub.Close()
}
