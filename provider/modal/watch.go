package modal

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/watchhub"
)

// pollInterval is how often Modal is asked what has changed while somebody watches: it tells
// nobody by itself. What this program does is told at once.
const pollInterval = 2 * time.Second

// events tells of changes, whoever made them, as they are seen.
type events struct {
	p    *Provider
	hub  *watchhub.Hub
	runs sync.WaitGroup
	quit context.CancelFunc
	ctx  context.Context

	mu        sync.Mutex
	watchers  int
	wake      chan struct{} // there is somebody who watches
	published map[string]publishedStatus
	changes   map[string]bool // the sandboxes that this program has changed since it began to look at all; nil if it does not
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

// pollChanges looks at all sandboxes from time to time while somebody watches.
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

// publishAll tells what is new of all sandboxes. Of those that this program changes meanwhile, it
// has told already what is newer.
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

// publishChange tells what is new of a sandbox that this program has changed, and of which that is
// written; nil if it is no more.
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

// publishRecord tells of a sandbox as it is, unless that was told; e.mu is held.
func (e *events) publishRecord(r *record) {
	last, known := e.published[r.ID]
	switch {
	case r.State == atoll.StateCreating:
	case known && last.page > r.page.Number: // what is told is newer
	case !known || last.State != r.State || !last.Started.Equal(r.Started) || last.Ready != r.Ready:
		e.published[r.ID] = publishedStatus{r.Status, r.page.Number}
		e.hub.Publish(r.Status)
	}
}

// publishRemoved tells that a sandbox is no more; e.mu is held.
func (e *events) publishRemoved(id string) {
	last, known := e.published[id]
	if !known {
		return
	}
	delete(e.published, id)
	last.State, last.Ready, last.Reason = atoll.StateRemoved, false, ""
	e.hub.Publish(last.Status)
}

// publishedStatus is what was told of a sandbox, and on which page that is written.
type publishedStatus struct {
	atoll.Status
	page uint64
}

// close ends all watches.
func (e *events) close() {
	e.quit()
	e.runs.Wait()
	e.hub.Close()
}
