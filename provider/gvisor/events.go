//go:build linux

package gvisor

import (
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/fsnotify/fsnotify"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/hub"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/keeper"
)

// events tells of changes, whichever process made them: every change of a
// sandbox's state is a new record, and the records are one watched directory.
// A keeper that dies writes none, so each one's socket is held open while
// somebody watches: it ends with the keeper.
type events struct {
	p   *Provider
	hub *hub.Hub

	start   sync.Once
	err     error // of start
	running atomic.Bool
	work    sync.WaitGroup
	quit    chan struct{}

	mu    sync.Mutex
	last  map[string]atoll.Status // what was told of each sandbox
	pulse map[string]net.Conn     // to the keepers
}

func newEvents(p *Provider) *events {
	e := &events{p: p, quit: make(chan struct{}), last: map[string]atoll.Status{}, pulse: map[string]net.Conn{}}
	e.hub = hub.New(e.list)
	return e
}

func (e *events) list() []atoll.Status {
	list, err := e.p.List(context.Background(), atoll.Filter{})
	if err != nil {
		e.p.log.Error("watch", "err", err)
	}
	return list
}

// Watch implements atoll.Provider.
func (p *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		e := p.events
		e.start.Do(func() { e.err = e.run() })
		if e.err != nil {
			yield(atoll.Event{}, atoll.E("watch", "", atoll.ErrUnavailable, e.err))
			return
		}
		for ev, err := range e.hub.Watch(ctx) {
			if !yield(ev, err) {
				return
			}
		}
	}
}

// run begins to watch the records.
func (e *events) run() error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	if err := w.Add(filepath.Dir(e.p.dir.Record("x"))); err != nil {
		w.Close()
		return err
	}
	e.running.Store(true)
	e.all()
	e.work.Go(func() {
		defer w.Close()
		for {
			select {
			case ev := <-w.Events:
				if id, ok := strings.CutSuffix(filepath.Base(ev.Name), ".json"); ok {
					e.changed(id)
				}
			case err := <-w.Errors:
				e.p.log.Warn("watch", "err", err)
				if errors.Is(err, fsnotify.ErrEventOverflow) {
					e.all()
				}
			case <-e.quit:
				return
			}
		}
	})
	return nil
}

// all looks at every sandbox, after events were lost.
func (e *events) all() {
	ids := map[string]bool{}
	for _, st := range e.list() {
		ids[st.ID] = true
	}
	e.mu.Lock()
	for id := range e.last {
		ids[id] = true
	}
	e.mu.Unlock()
	for id := range ids {
		e.changed(id)
	}
}

// changed looks at the sandbox and tells what is new. Looking and telling are
// one step, so that states are told in the order in which they were; whoever
// in this process changes one calls it, so that none is missed for being short.
func (e *events) changed(id string) {
	if !e.running.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	rec, err := e.p.read("watch", id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		if last, known := e.last[id]; known {
			last.State, last.Ready, last.Reason = atoll.StateRemoved, false, ""
			delete(e.last, id)
			e.hub.Publish(last)
		}
		return
	}
	if err != nil {
		e.p.log.Warn("watch", "sandbox", id, "err", err)
		return
	}
	e.tell(rec.Status)
}

// tell publishes the status unless the state is the one told last. e.mu is
// held.
func (e *events) tell(st atoll.Status) {
	if e.last[st.ID].State == st.State {
		return
	}
	e.last[st.ID] = st
	e.hub.Publish(st)
	if live(st.State) && e.pulse[st.ID] == nil {
		e.feel(st.ID)
	}
}

// feel connects to the sandbox's keeper and looks at the sandbox when that has
// ended. e.mu is held.
func (e *events) feel(id string) {
	dir, err := os.Open(e.p.dir.Sandbox(id))
	if err != nil {
		return // gone again, of which there is an event
	}
	defer dir.Close()
	conn, err := net.Dial("unix", keeper.SocketPath(dir))
	if err != nil {
		return
	}
	select {
	case <-e.quit:
		conn.Close()
		return
	default:
	}
	e.pulse[id] = conn
	e.work.Go(func() {
		_, _ = io.Copy(io.Discard, conn) // the keeper says nothing; it only ends
		conn.Close()
		e.mu.Lock()
		delete(e.pulse, id)
		e.mu.Unlock()
		select {
		case <-e.quit:
		default:
			e.p.gone(context.Background(), id)
			e.changed(id)
		}
	})
}

// close ends all watches and waits for what they use.
func (e *events) close() {
	e.hub.Close()
	e.start.Do(func() { e.err = errors.New("the provider is closed") })
	e.mu.Lock()
	close(e.quit)
	for _, conn := range e.pulse {
		conn.Close()
	}
	e.mu.Unlock()
	e.work.Wait()
}
