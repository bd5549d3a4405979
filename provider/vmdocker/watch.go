package vmdocker

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/hub"
)

// watch tells of changes, whoever made them: of sandboxes by the engines that run, and of
// machines that come and go.
type watch struct {
	p    *Provider
	hub  *hub.Hub
	ctx  context.Context // ends with the provider
	quit context.CancelFunc
	once sync.Once
	work sync.WaitGroup

	mu   sync.Mutex
	last map[string]atoll.Status // what was told of each sandbox
	runs map[string]func()       // by machine: ends listening to its engine
}

func newWatch(p *Provider) *watch {
	w := &watch{p: p, last: map[string]atoll.Status{}, runs: map[string]func(){}}
	w.ctx, w.quit = context.WithCancel(context.Background())
	w.hub = hub.New(func() ([]atoll.Status, error) { return p.List(w.ctx, atoll.Filter{}) })
	return w
}

// Watch implements atoll.Provider.
func (p *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		if err := p.watch.run(ctx); err != nil {
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

// run begins to listen, for the first who wants to know, and returns when what there is
// was looked at.
func (w *watch) run(ctx context.Context) error {
	begun := make(chan struct{})
	started := false
	w.once.Do(func() {
		started = true
		w.work.Go(func() { w.machines(begun) })
	})
	if !started {
		return nil
	}
	select {
	case <-begun:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// listenAgain is how long after what was listened to broke off it is listened to again.
const listenAgain = time.Second

// machines listens to who makes machines. begun is closed when those that there are have
// been seen.
func (w *watch) machines(begun chan struct{}) {
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
				w.machine(ev.Status)
			}
		}
		w.pause()
	}
}

func (w *watch) pause() {
	select {
	case <-w.ctx.Done():
	case <-time.After(listenAgain):
	}
}

// machine sees to it that the engine of a machine is listened to as long as that runs,
// and tells what has become of its sandboxes when it ends.
func (w *watch) machine(m atoll.Status) {
	if m.Spec.Name != machineName {
		return
	}
	w.mu.Lock()
	end := w.runs[m.ID]
	runs := m.State == atoll.StateRunning
	if runs && end == nil {
		ctx, cancel := context.WithCancel(w.ctx)
		done := make(chan struct{})
		w.runs[m.ID] = func() { cancel(); <-done }
		w.work.Go(func() {
			defer close(done)
			w.engine(ctx, m)
		})
	}
	if !runs {
		delete(w.runs, m.ID)
	}
	w.mu.Unlock()
	if runs || end == nil {
		return
	}
	end()
	w.p.drop(m.Spec.Project, m.ID)
	list, err := w.p.listProject(w.ctx, m.Spec.Project, nil)
	if err != nil {
		w.hub.Interrupt(err)
	}
	for _, st := range list {
		w.tell(st, true) // what is being removed with its machine may have been told of as such
	}
}

// engine listens to the engine of a machine.
func (w *watch) engine(ctx context.Context, m atoll.Status) {
	for ; ctx.Err() == nil; w.pause() {
		sb, err := w.p.opts.Machines.Get(ctx, m.ID)
		if err != nil {
			continue // it is about to end
		}
		e, err := w.p.engine(m.Spec.Project, sb, m)
		if err != nil {
			return // the provider is closed
		}
		for ev, err := range e.docker.Watch(ctx) {
			if err != nil || ev.Type != atoll.EventState {
				continue // it is starting, or has ended
			}
			w.changed(e, ev.Status)
		}
	}
}

// changed notes and tells what an engine says of a sandbox.
func (w *watch) changed(e *engine, st atoll.Status) {
	st = e.seen(st)
	var err error
	if st.State == atoll.StateRemoved {
		err = w.p.notes.forget(e.project, st.ID)
	} else {
		err = w.p.notes.write(st)
	}
	if err != nil {
		w.p.log.Error("watch", "sandbox", st.ID, "err", err)
	}
	w.tell(st, false)
}

// tell publishes what is new of a sandbox: if only of one of which it has told before,
// and not that it was removed.
func (w *watch) tell(st atoll.Status, again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, known := w.last[st.ID]
	switch {
	case again && !known:
	case st.State == atoll.StateRemoved:
		delete(w.last, st.ID)
		w.hub.Publish(st)
	case !known || last.State != st.State || !last.Started.Equal(st.Started):
		w.last[st.ID] = st
		w.hub.Publish(st)
	}
}

// close ends all watches and waits for what they use.
func (w *watch) close() {
	w.hub.Close()
	w.quit()
	w.work.Wait()
}
