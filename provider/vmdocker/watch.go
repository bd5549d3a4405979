package vmdocker

import (
	"context"
	"errors"
	"iter"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/watchhub"
)

// watcher publishes the changes of sandboxes, by any program: those that running engines
// report, those of machines that start and end, and removals while a machine is off.
type watcher struct {
	p      *Provider
	hub    *watchhub.Hub
	ctx    context.Context // ends with the provider
	cancel context.CancelFunc
	work   sync.WaitGroup

	start   sync.Mutex // held by beginListening
	started bool

	mu               sync.Mutex
	on               bool                    // a caller has watched
	published        map[string]atoll.Status // the last published status of each sandbox
	listeners        map[string]func()       // by machine id: stops listening to its engine
	createdOfRemoved map[string]time.Time    // creation times of sandboxes removed while their machine was off, by id
}

func newWatcher(p *Provider) *watcher {
	w := &watcher{p: p, published: map[string]atoll.Status{}, listeners: map[string]func(){}, createdOfRemoved: map[string]time.Time{}}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.hub = watchhub.New(func() ([]atoll.Status, error) { return p.List(w.ctx, atoll.Filter{}) })
	return w
}

// Watch implements atoll.Provider.
func (p *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		if err := p.watch.startListening(ctx); err != nil {
			yield(atoll.Event{}, err)
			return
		}
		for ev, err := range p.watch.hub.Watch(ctx) {
			if !yield(ev, err) {
				return
			}
		}
	}
}

// startListening starts to listen on the first call, and returns when the existing machines are
// known.
func (w *watcher) startListening(ctx context.Context) error {
	begun, err := w.beginListening()
	if begun == nil || err != nil {
		return err
	}
	select {
	case <-begun:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beginListening starts to listen. begun is nil if an earlier call has done so.
func (w *watcher) beginListening() (begun chan struct{}, err error) {
	w.start.Lock()
	defer w.start.Unlock()
	if w.started || w.ctx.Err() != nil {
		return nil, nil // the hub reports that it is closed
	}
	if err := w.watchRemovals(); err != nil {
		return nil, err
	}
	w.started, begun = true, make(chan struct{})
	w.work.Go(func() { w.watchMachines(begun) })
	return begun, nil
}

// watchRemovals watches for removals of sandboxes whose machine is off.
func (w *watcher) watchRemovals() error {
	w.mu.Lock()
	w.on = true
	w.mu.Unlock()
	changes, err := fsnotify.NewWatcher()
	if err != nil {
		return atoll.E("watch", "", atoll.ErrUnavailable, err)
	}
	all := func() error {
		list, err := w.p.notes.listRemovals("")
		for _, r := range list {
			w.publishRemoved(r.Status)
		}
		return err
	}
	if err = changes.Add(w.p.notes.removalsDir()); err == nil {
		err = all()
	}
	if err != nil {
		changes.Close()
		return atoll.E("watch", "", atoll.ErrUnavailable, err)
	}
	w.work.Go(func() {
		defer changes.Close()
		for {
			select {
			case ev := <-changes.Events:
				r, err := w.p.notes.readRemoval(ev.Name)
				if err == nil && filepath.Ext(ev.Name) == ".json" { // otherwise the removal is done, or its file is being written
					w.publishRemoved(r.Status)
				}
			case err := <-changes.Errors: // some events were lost
				w.hub.Interrupt(errors.Join(err, all()))
			case <-w.ctx.Done():
				return
			}
		}
	})
	return nil
}

// publishRemoved publishes, once, the removal of a sandbox whose container still exists. The
// engine's later reports of it are not published.
func (w *watcher) publishRemoved(st atoll.Status) {
	w.mu.Lock()
	made, told := w.createdOfRemoved[st.ID]
	if !w.on || st.Created.IsZero() || told && made.Equal(st.Created) {
		w.mu.Unlock()
		return
	}
	w.createdOfRemoved[st.ID] = st.Created
	w.mu.Unlock()
	st.State, st.Ready, st.Reason = atoll.StateRemoved, false, ""
	w.publishStatus(st, false)
}

// isStale reports whether an engine's report is about a sandbox that was removed before.
func (w *watcher) isStale(st atoll.Status) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	made, ok := w.createdOfRemoved[st.ID]
	if ok && (st.State == atoll.StateRemoved || !made.Equal(st.Created)) {
		delete(w.createdOfRemoved, st.ID) // its container is gone, and another sandbox may have its id
	}
	return ok && made.Equal(st.Created)
}

// listenInterval is the pause before listening again after an error.
const listenInterval = time.Second

// watchMachines watches the machines. It closes begun when it knows those that exist.
func (w *watcher) watchMachines(begun chan struct{}) {
	synced := sync.OnceFunc(func() { close(begun) })
	defer synced()
	for w.ctx.Err() == nil {
		for ev, err := range w.p.opts.Machines.Watch(w.ctx) {
			switch {
			case err != nil && w.ctx.Err() == nil:
				w.hub.Interrupt(err)
			case err == nil && ev.Type == atoll.EventSynced:
				synced()
			case err == nil:
				w.updateMachine(ev.Status)
			}
		}
		w.waitPause()
	}
}

func (w *watcher) waitPause() {
	select {
	case <-w.ctx.Done():
	case <-time.After(listenInterval):
	}
}

// updateMachine listens to the engine of a machine as long as the machine runs, and publishes
// the states of its sandboxes when it ends.
func (w *watcher) updateMachine(m atoll.Status) {
	if m.Spec.Name != machineName {
		return
	}
	w.mu.Lock()
	end := w.listeners[m.ID]
	runs := m.State == atoll.StateRunning
	if runs && end == nil {
		ctx, cancel := context.WithCancel(w.ctx)
		done := make(chan struct{})
		w.listeners[m.ID] = func() { cancel(); <-done }
		w.work.Go(func() {
			defer close(done)
			w.watchEngine(ctx, m)
		})
	}
	if !runs {
		delete(w.listeners, m.ID)
	}
	w.mu.Unlock()
	if runs || end == nil {
		return
	}
	end()
	w.p.dropEngine(m.Spec.Project, m.ID)
	list, err := w.p.listProject(w.ctx, m.Spec.Project, nil)
	if err != nil {
		w.hub.Interrupt(err)
	}
	for _, st := range list {
		w.publishStatus(st, true) // sandboxes that are removed with the machine may have been published as removed
	}
}

// watchEngine listens to the engine of a machine.
func (w *watcher) watchEngine(ctx context.Context, m atoll.Status) {
	for ; ctx.Err() == nil; w.waitPause() {
		sb, err := w.p.opts.Machines.Get(ctx, m.ID)
		if err != nil {
			continue // it is about to end
		}
		e, err := w.p.openEngine(m.Spec.Project, sb, m)
		if err != nil {
			return // the provider is closed
		}
		for ev, err := range e.docker.Watch(ctx) {
			if err != nil || ev.Type != atoll.EventState {
				continue // the engine is starting, or has ended
			}
			w.recordChange(e, ev.Status)
		}
	}
}

// recordChange records and publishes an engine's report of a sandbox.
func (w *watcher) recordChange(e *engine, st atoll.Status) {
	if st = e.ownStatus(st); w.isStale(st) {
		return
	}
	var err error
	if st.State == atoll.StateRemoved {
		err = w.p.notes.removeStatus(e.project, st.ID)
	} else {
		err = w.p.notes.writeStatus(st)
	}
	if err != nil {
		w.p.log.Error("watch", "sandbox", st.ID, "err", err)
	}
	w.publishStatus(st, false)
}

// publishStatus publishes the status of a sandbox if it is new. With again, it does so only for
// a sandbox that was published before and not as removed.
func (w *watcher) publishStatus(st atoll.Status, again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, known := w.published[st.ID]
	switch {
	case again && !known:
	case st.State == atoll.StateRemoved:
		delete(w.published, st.ID)
		w.hub.Publish(st)
	case !known || last.State != st.State || !last.Started.Equal(st.Started):
		w.published[st.ID] = st
		w.hub.Publish(st)
	}
}

// close ends all watches, and waits for their goroutines.
func (w *watcher) close() {
	w.hub.Close()
	w.cancel()
	w.work.Wait()
}
