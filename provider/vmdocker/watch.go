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

// watcher tells of changes, whoever made them: of sandboxes by the engines that run, of
// machines that come and go, and of what was removed while they were off.
type watcher struct {
	p      *Provider
	hub    *watchhub.Hub
	ctx    context.Context // ends with the provider
	cancel context.CancelFunc
	work   sync.WaitGroup

	start   sync.Mutex // held while beginning to listen
	started bool

	mu               sync.Mutex
	on               bool                    // somebody has listened
	published        map[string]atoll.Status // what was told of each sandbox
	listeners        map[string]func()       // by machine: ends listening to its engine
	createdOfRemoved map[string]time.Time    // by id of one that was removed while its machine was off: when it was made
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

// startListening begins to listen, for the first who wants to know, and returns when what there is
// was looked at.
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

// beginListening begins to listen. begun is nil if somebody has begun before.
func (w *watcher) beginListening() (begun chan struct{}, err error) {
	w.start.Lock()
	defer w.start.Unlock()
	if w.started || w.ctx.Err() != nil {
		return nil, nil // the hub says that it is closed
	}
	if err := w.watchRemovals(); err != nil {
		return nil, err
	}
	w.started, begun = true, make(chan struct{})
	w.work.Go(func() { w.watchMachines(begun) })
	return begun, nil
}

// watchRemovals listens to who removes sandboxes whose machine is off.
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
				if err == nil && filepath.Ext(ev.Name) == ".json" { // else it is done, or being written
					w.publishRemoved(r.Status)
				}
			case err := <-changes.Errors: // some were missed
				w.hub.Interrupt(errors.Join(err, all()))
			case <-w.ctx.Done():
				return
			}
		}
	})
	return nil
}

// publishRemoved tells, once, that a sandbox was removed whose container is there still. What an
// engine says of that is no news.
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

// isStale reports whether what an engine says is of a sandbox that was removed before.
func (w *watcher) isStale(st atoll.Status) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	made, ok := w.createdOfRemoved[st.ID]
	if ok && (st.State == atoll.StateRemoved || !made.Equal(st.Created)) {
		delete(w.createdOfRemoved, st.ID) // its container is gone, and another may have its id
	}
	return ok && made.Equal(st.Created)
}

// listenInterval is how long after what was listened to broke off it is listened to again.
const listenInterval = time.Second

// watchMachines listens to who makes machines. begun is closed when those that there are have
// been seen.
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

// updateMachine sees to it that the engine of a machine is listened to as long as that runs,
// and tells what has become of its sandboxes when it ends.
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
		w.publishStatus(st, true) // what is being removed with its machine may have been told of as such
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
				continue // it is starting, or has ended
			}
			w.recordChange(e, ev.Status)
		}
	}
}

// recordChange notes and tells what an engine says of a sandbox.
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

// publishStatus publishes what is new of a sandbox: if only of one of which it has told before,
// and not that it was removed.
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

// close ends all watches and waits for what they use.
func (w *watcher) close() {
	w.hub.Close()
	w.cancel()
	w.work.Wait()
}
