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

// eventWatcher tells of changes, whichever process made them: every change of a
// sandbox's state is a new record, and the records are one watched directory.
// A supervisor that dies writes none, so each one's socket is held open while
// somebody watches: it ends with the supervisor.
type eventWatcher struct {
	p    *Provider
	hub  *watchhub.Hub
	work sync.WaitGroup
	ctx  context.Context // ends with the provider
	quit context.CancelFunc

	start   sync.Mutex // held while beginning to watch
	running atomic.Bool

	mu        sync.Mutex
	published map[string]atoll.Status // what was told of each sandbox
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

// startWatching begins to watch the records, for the first who wants to know of changes.
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

// followRecords looks at what changes until the provider is closed.
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

// publishAllChanges looks at every sandbox, after events were lost.
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

// publishChanges looks at the sandbox and tells what is new. Looking and telling are
// one step, so that states are told in the order in which they were; whoever
// in this process changes one calls it, so that none is missed for being short.
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
	if rec.Removing != nil && e.p.dir.Busy(id) {
		return // that it is removed is all there is to tell, soon
	}
	e.publishStatus(rec.Status)
	if isLive(rec.Status.State) && e.conns[id] == nil {
		e.watchSupervisor(id, rec.Supervisor)
	}
}

// publishStatus publishes the status, and what led to it, unless it is the one told last.
// e.mu is held.
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

// missedStates returns what a sandbox went through from one look to the next, when
// others were quicker than that: since it was started in between, it ran, and
// before that did not.
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

// watchSupervisor connects to the sandbox's supervisor and looks at the sandbox when that has
// ended. e.mu is held.
func (e *eventWatcher) watchSupervisor(id string, who statedir.Identity) {
	conn, err := e.p.dialSupervisor(id)
	if err != nil {
		return // it has ended, of which there is a record, or comes up
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
		if e.awaitSupervisorEnd(id, who) {
			e.publishChanges(id)
		}
	})
}

// dialSupervisor connects to the sandbox's supervisor and says something. A connection on
// which nothing was said yet counts as busy for seconds, for which a supervisor that
// ends would wait; of this the sandbox's API does not hear, so that it does not
// count as use of the sandbox.
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

// awaitSupervisorEnd waits until that supervisor of the sandbox has gone, or another one has
// taken its place; false if the provider is closed before that.
func (e *eventWatcher) awaitSupervisorEnd(id string, who statedir.Identity) bool {
	for delay := time.Millisecond; e.ctx.Err() == nil && e.p.dir.Alive(id); delay = min(2*delay, 20*time.Millisecond) {
		if rec, err := e.p.dir.Read(id); err != nil || rec.Supervisor != who {
			break
		}
		select {
		case <-e.ctx.Done():
		case <-time.After(delay):
		}
	}
	return e.ctx.Err() == nil
}

// close ends all watches and waits for what they use.
func (e *eventWatcher) close() {
	e.hub.Close()
	e.start.Lock() // nobody is about to begin
	e.quit()
	e.start.Unlock()
	e.mu.Lock()
	for _, conn := range e.conns {
		conn.Close()
	}
	e.mu.Unlock()
	e.work.Wait()
}
