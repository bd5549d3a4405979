package supervised

import (
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
	"github.com/seed46cd37a8/atoll/provider/internal/watchhub"
)

// An eventWatcher publishes changes of sandboxes, whichever process made them: every change
// of a sandbox's state writes a new record, and all records are in one watched directory. A
// supervisor that dies writes none, so while anybody watches, the eventWatcher holds a
// connection to each supervisor open, which ends with the supervisor.
type eventWatcher struct {
	p    *Provider
	hub  *watchhub.Hub
	work sync.WaitGroup
	ctx  context.Context // ends with the provider
	quit context.CancelFunc

	start   sync.Mutex // held by startWatching
	running atomic.Bool

	mu        sync.Mutex
	published map[string]atoll.Status // the last published status of each sandbox
	conns     map[string]net.Conn     // to the supervisors
}

func newEvents(p *Provider) *eventWatcher {
	e := &eventWatcher{p: p, published: map[string]atoll.Status{}, conns: map[string]net.Conn{}}
	e.ctx, e.quit = context.WithCancel(context.Background())
	e.hub = watchhub.New(e.listSandboxes)
	return e
}

func (e *eventWatcher) listSandboxes() ([]atoll.Status, error) {
	return e.p.List(e.ctx, atoll.Filter{})
}

// Watch implements atoll.Provider.
func (p *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		if err := p.events.startWatching(); err != nil {
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

// startWatching begins to watch the records when Watch is called for the first time.
func (e *eventWatcher) startWatching() error {
	e.start.Lock()
	defer e.start.Unlock()
	if e.running.Load() || e.ctx.Err() != nil {
		return nil // the hub says that it is closed
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return atoll.E("watch", "", atoll.ErrUnavailable, err)
	}
	err = w.Add(filepath.Dir(e.p.dir.Record("x")))
	if err == nil {
		e.running.Store(true)
		err = e.publishAllChanges()
	}
	if err != nil {
		e.running.Store(false)
		w.Close()
		return atoll.E("watch", "", atoll.ErrUnavailable, err)
	}
	e.work.Go(func() {
		defer w.Close()
		e.followRecords(w)
	})
	return nil
}

// followRecords publishes the changes of records until the provider is closed.
func (e *eventWatcher) followRecords(w *fsnotify.Watcher) {
	for {
		select {
		case ev := <-w.Events:
			if id, ok := strings.CutSuffix(filepath.Base(ev.Name), ".json"); ok {
				e.publishChanges(id)
			}
		case err := <-w.Errors:
			e.p.log.Warn("watch", "err", err)
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				err = e.publishAllChanges()
			}
			if err != nil {
				e.hub.Interrupt(err)
			}
		case <-e.ctx.Done():
			return
		}
	}
}

// publishAllChanges checks every sandbox, after the operating system dropped events.
func (e *eventWatcher) publishAllChanges() error {
	list, err := e.listSandboxes()
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
		e.publishChanges(id)
	}
	return nil
}

// publishChanges reads the sandbox's record and publishes what is new. Reading and
// publishing are one step, so that states are published in their order. Code in this
// process that changes a state calls publishChanges itself, so that no short-lived state is
// missed.
func (e *eventWatcher) publishChanges(id string) {
	if !e.running.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	rec, err := e.p.readRecord("watch", id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		if last, known := e.published[id]; known {
			last.State, last.Ready, last.Reason = atoll.StateRemoved, false, ""
			delete(e.published, id)
			e.hub.Publish(last)
		}
		return
	}
	if err != nil {
		e.p.log.Warn("watch", "sandbox", id, "err", err)
		e.hub.Interrupt(err)
		return
	}
	if rec.Removing != nil && rec.Status.Reason == reasonRemoving {
		return // the process that removes it will publish the end
	}
	e.publishStatus(rec.Status)
	if isLive(rec.Status.State) && e.conns[id] == nil {
		e.watchSupervisor(id, rec.Supervisor)
	}
}

// publishStatus publishes the status, and the states that led to it, unless it was
// published last. e.mu is held.
func (e *eventWatcher) publishStatus(st atoll.Status) {
	last, known := e.published[st.ID]
	e.published[st.ID] = st
	if known {
		for _, missed := range missedStates(last, st) {
			e.hub.Publish(missed)
		}
	}
	if last.State != st.State || !last.Started.Equal(st.Started) {
		e.hub.Publish(st)
	}
}

// missedStates returns the states that a sandbox went through between two looks, if other
// processes were quicker: when it was started in between, it ran, and before that did not.
func missedStates(last, now atoll.Status) []atoll.Status {
	if last.Started.Equal(now.Started) {
		return nil
	}
	var missed []atoll.Status
	if isLive(last.State) {
		last.State, last.Ready, last.Stopped = atoll.StateStopped, false, now.Started
		missed = append(missed, last)
	}
	if now.State != atoll.StateRunning {
		now.State, now.Ready, now.Reason, now.Exit, now.Stopped = atoll.StateRunning, true, "", nil, time.Time{}
		missed = append(missed, now)
	}
	return missed
}

// watchSupervisor connects to the sandbox's supervisor, and publishes the sandbox's changes
// when the supervisor has ended. e.mu is held.
func (e *eventWatcher) watchSupervisor(id string, identity statedir.Identity) {
	conn, err := e.p.dialSupervisor(id)
	if err != nil {
		return // it has ended, and wrote a record, or is not listening yet
	}
	if e.ctx.Err() != nil {
		conn.Close()
		return
	}
	e.conns[id] = conn
	e.work.Go(func() {
		_, _ = io.Copy(io.Discard, conn) // ends with the supervisor
		conn.Close()
		e.mu.Lock()
		delete(e.conns, id)
		e.mu.Unlock()
		if e.awaitSupervisorEnd(id, identity) {
			e.publishChanges(id)
		}
	})
}

// dialSupervisor connects to the sandbox's supervisor and sends a request. The supervisor's
// HTTP server would count a silent connection as busy for some seconds, and wait for it
// when it ends. The request does not reach the sandbox's API, so it does not count as use
// of the sandbox.
func (p *Provider) dialSupervisor(id string) (net.Conn, error) {
	conn, err := supervisor.Dial(context.Background(), p.dir.Sandbox(id))
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(conn, "OPTIONS * HTTP/1.1\r\nHost: keeper\r\n\r\n"); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// awaitSupervisorEnd waits until that supervisor of the sandbox has gone, or another one
// has taken its place. It returns false if the provider is closed first.
func (e *eventWatcher) awaitSupervisorEnd(id string, identity statedir.Identity) bool {
	for delay := time.Millisecond; e.ctx.Err() == nil && e.p.dir.Alive(id); delay = min(2*delay, 20*time.Millisecond) {
		if rec, err := e.p.dir.Read(id); err != nil || rec.Supervisor != identity {
			break
		}
		select {
		case <-e.ctx.Done():
		case <-time.After(delay):
		}
	}
	return e.ctx.Err() == nil
}

// close ends all watches and waits for their goroutines.
func (e *eventWatcher) close() {
	e.hub.Close()
	e.start.Lock() // wait for a startWatching in progress
	e.quit()
	e.start.Unlock()
	e.mu.Lock()
	for _, conn := range e.conns {
		conn.Close()
	}
	e.mu.Unlock()
	e.work.Wait()
}
