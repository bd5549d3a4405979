package router

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

const (
	queueLimit = 1024             // events that a reader may be behind
	minRewatch = time.Second      // wait before the watch of a member starts again
	maxRewatch = 30 * time.Second // after repeated failures
)

// Watch implements atoll.Provider. It merges the events of all members. Its replay
// has the sandboxes of the members that answer; if none does, Watch fails. When the
// watch of a member ends, Watch starts it again and replays its sandboxes, with
// removal events for those that are gone.
func (p *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(atoll.Event{}, err)
			return
		}
		if len(p.members) == 1 {
			p.watchOne(ctx, yield)
			return
		}
		s := &stream{
			p: p, wake: make(chan struct{}, 1),
			pendingReplays: len(p.members), failed: map[*member]error{}, replay: map[string]atoll.Status{},
		}
		defer s.followers.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		for _, m := range p.members {
			s.followers.Go(func() { s.followMember(ctx, m) })
		}
		s.yieldEvents(ctx, yield)
	}
}

// watchOne watches the only member.
func (p *Provider) watchOne(ctx context.Context, yield func(atoll.Event, error) bool) {
	leaf, err := p.members[0].openLeaf()
	if err != nil {
		yield(atoll.Event{}, err)
		return
	}
	leaf.Watch(ctx)(yield)
}

// A stream is one call of Watch. One goroutine per member adds events and never
// blocks on the reader; the caller reads them.
type stream struct {
	p         *Provider
	followers sync.WaitGroup
	wake      chan struct{} // capacity 1

	mu             sync.Mutex
	pendingReplays int                     // members whose replay is not complete
	failed         map[*member]error       // members without a replay
	order          []string                // keys of replay, in order of arrival
	replay         map[string]atoll.Status // the sandboxes of the replay, until no replay is pending
	synced         bool                    // the reader has the replay
	queue          []atoll.Event           // events after the replay
	err            error                   // why the stream ended
}

// yieldEvents yields events until the stream, ctx or the caller ends.
func (s *stream) yieldEvents(ctx context.Context, yield func(atoll.Event, error) bool) {
	for {
		events, err := s.takeEvents()
		for _, ev := range events {
			if !yield(ev, nil) {
				return
			}
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			yield(atoll.Event{}, err)
			return
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
		case <-s.p.done:
			s.closeStream(errClosed("watch"))
		}
	}
}

// takeEvents removes and returns the events that are ready.
func (s *stream) takeEvents() (events []atoll.Event, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	if s.pendingReplays > 0 {
		return nil, nil
	}
	if !s.synced {
		s.synced = true
		now := time.Now()
		for _, id := range s.order {
			events = append(events, atoll.Event{Type: atoll.EventState, Status: s.replay[id], Time: now})
		}
		events = append(events, atoll.Event{Type: atoll.EventSynced, Time: now})
		s.replay, s.order = nil, nil
	}
	events = append(events, s.queue...)
	s.queue = nil
	return events, nil
}

// addEvents adds events, all at once for the reader. Before the replay is complete,
// they only update its statuses.
func (s *stream) addEvents(events ...atoll.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return
	case s.pendingReplays == 0 && len(s.queue) >= queueLimit:
		s.closeLocked(atoll.Errorf("watch", "", atoll.ErrUnavailable, "the reader is more than %d changes behind; watch again", queueLimit))
		return
	case s.pendingReplays == 0:
		s.queue = append(s.queue, events...)
		s.wakeReader()
		return
	}
	for _, ev := range events {
		id := ev.Status.ID
		if ev.Status.State == atoll.StateRemoved {
			delete(s.replay, id)
			s.order = slices.DeleteFunc(s.order, func(o string) bool { return o == id })
			continue
		}
		if _, known := s.replay[id]; !known {
			s.order = append(s.order, id)
		}
		s.replay[id] = ev.Status
	}
}

// finishReplay records that the replay of m is complete, or, with err, that it
// failed.
func (s *stream) finishReplay(m *member, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pendingReplays--
	if err != nil {
		s.failed[m] = err
	}
	if len(s.failed) == len(s.p.members) {
		var answers []memberAnswer[struct{}]
		for _, m := range s.p.members {
			answers = append(answers, memberAnswer[struct{}]{m: m, err: s.failed[m]})
		}
		s.closeLocked(missingError(answers))
	}
	s.wakeReader()
}

// closeStream ends the stream with err.
func (s *stream) closeStream(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLocked(err)
}

// closeLocked ends the stream with err, unless it has ended. The caller holds s.mu.
func (s *stream) closeLocked(err error) {
	if s.err == nil {
		s.queue, s.err = nil, err
	}
	s.wakeReader()
}

// wakeReader wakes yieldEvents.
func (s *stream) wakeReader() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// followMember watches m, again and again, until ctx ends.
func (s *stream) followMember(ctx context.Context, m *member) {
	var once sync.Once
	settle := func(err error) { once.Do(func() { s.finishReplay(m, err) }) }
	limit := m.answerLimit()
	late := time.AfterFunc(limit, func() {
		settle(atoll.Errorf("watch", m.name, atoll.ErrUnavailable, "no answer within %s", limit))
	})
	defer late.Stop()
	w := &memberWatch{s: s, m: m, last: map[string]atoll.Status{}, finishReplay: settle}
	for pause := minRewatch; ; pause = min(2*pause, maxRewatch) {
		synced, err := w.watchMember(ctx)
		if ctx.Err() != nil {
			return
		}
		m.recordAnswer(err)
		settle(err)
		if synced {
			pause = minRewatch
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// A memberWatch is the state of a stream for one member.
type memberWatch struct {
	s            *stream
	m            *member
	last         map[string]atoll.Status // the last status of each sandbox
	finishReplay func(error)
}

// watchMember watches the member until the watch ends, and reports whether its
// replay was complete.
func (w *memberWatch) watchMember(ctx context.Context) (synced bool, err error) {
	leaf, err := w.m.openLeaf()
	if err != nil {
		return false, err
	}
	var fresh []atoll.Status
	for ev, err := range leaf.Watch(w.m.asideOf(ctx)) {
		switch {
		case err != nil:
			return synced, err
		case ev.Type == atoll.EventSynced:
			w.sendReplay(fresh)
			synced = true
		case synced:
			w.sendChange(ev)
		default:
			fresh = append(fresh, ev.Status)
		}
	}
	return synced, atoll.Errorf("watch", w.m.name, atoll.ErrUnavailable, "the watch ended")
}

// sendReplay adds the statuses of a replay, and removal events for sandboxes that
// are gone since the last one.
func (w *memberWatch) sendReplay(fresh []atoll.Status) {
	now := time.Now()
	gone := w.last
	w.last = make(map[string]atoll.Status, len(fresh))
	var events []atoll.Event
	for _, st := range fresh {
		delete(gone, st.ID)
		w.last[st.ID] = st.Clone()
		w.s.p.rememberMember(st.ID, w.m)
		events = append(events, atoll.Event{Type: atoll.EventState, Status: st, Time: now})
	}
	for id, st := range gone {
		w.s.p.forgetMember(id)
		st.State, st.Ready, st.Reason = atoll.StateRemoved, false, ""
		events = append(events, atoll.Event{Type: atoll.EventState, Status: st, Time: now})
	}
	w.m.recordAnswer(nil)
	w.s.addEvents(events...)
	w.finishReplay(nil)
}

// sendChange adds one event.
func (w *memberWatch) sendChange(ev atoll.Event) {
	st := ev.Status
	if st.State == atoll.StateRemoved {
		delete(w.last, st.ID)
		w.s.p.forgetMember(st.ID)
	} else {
		w.last[st.ID] = st.Clone()
		w.s.p.rememberMember(st.ID, w.m)
	}
	w.s.addEvents(ev)
}
