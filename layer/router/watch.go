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
	queueLimit = 1024 // changes that a reader may be behind
	minRewatch      = time.Second
	maxRewatch  = 30 * time.Second // between two looks at a member that cannot be watched
)

// Watch implements atoll.Provider. What members tell becomes one stream. Its
// replay is that of the members which answer; that none does is its error. A
// member that breaks off is watched again, and its sandboxes are replayed again,
// those that have gone meanwhile as removed.
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

// watchOne watches the only member, of which nothing is to be made.
func (p *Provider) watchOne(ctx context.Context, yield func(atoll.Event, error) bool) {
	leaf, err := p.members[0].openLeaf()
	if err != nil {
		yield(atoll.Event{}, err)
		return
	}
	leaf.Watch(ctx)(yield)
}

// A stream is one Watch: a goroutine for each member fills it, and never waits;
// the caller empties it.
type stream struct {
	p    *Provider
	followers sync.WaitGroup
	wake chan struct{} // capacity 1

	mu      sync.Mutex
	pendingReplays int                     // members that may still replay their sandboxes
	failed  map[*member]error       // those that did not
	order   []string                // the keys of replay, as they came
	replay  map[string]atoll.Status // what sandboxes are there, until none is awaited
	synced  bool                    // the reader has them
	queue   []atoll.Event           // what came later
	err     error                   // why it ends
}

// yieldEvents yields all that comes, to the end.
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

// takeEvents returns what is there to read.
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

// addEvents adds events that belong together. A sandbox that changes before the replay
// is complete is in it as it is then.
func (s *stream) addEvents(events ...atoll.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return
	case s.pendingReplays == 0 && len(s.queue) >= queueLimit:
		s.closeLocked(atoll.Errorf("watch", "", atoll.ErrUnavailable, "the reader is more than %d changes behind: watch again", queueLimit))
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

// finishReplay notes that the replay of m is complete, or why there is none.
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

func (s *stream) closeStream(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLocked(err)
}

// closeLocked ends the stream, for the first reason there is; s.mu is held.
func (s *stream) closeLocked(err error) {
	if s.err == nil {
		s.queue, s.err = nil, err
	}
	s.wakeReader()
}

func (s *stream) wakeReader() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// followMember watches m until ctx ends.
func (s *stream) followMember(ctx context.Context, m *member) {
	var once sync.Once
	settle := func(err error) { once.Do(func() { s.finishReplay(m, err) }) }
	limit := m.answerLimit()
	late := time.AfterFunc(limit, func() {
		settle(atoll.Errorf("watch", m.name, atoll.ErrUnavailable, "no answer within %s", limit))
	})
	defer late.Stop()
	f := &memberWatch{s: s, m: m, last: map[string]atoll.Status{}, finishReplay: settle}
	for pause := minRewatch; ; pause = min(2*pause, maxRewatch) {
		synced, err := f.watchMember(ctx)
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

// A follower is what a stream knows of one member.
type memberWatch struct {
	s      *stream
	m      *member
	last   map[string]atoll.Status // what was told of each sandbox
	finishReplay func(error)
}

// watchMember watches the member until it breaks off, and reports whether there was a
// replay.
func (f *memberWatch) watchMember(ctx context.Context) (synced bool, err error) {
	leaf, err := f.m.openLeaf()
	if err != nil {
		return false, err
	}
	var fresh []atoll.Status
	for ev, err := range leaf.Watch(f.m.asideOf(ctx)) {
		switch {
		case err != nil:
			return synced, err
		case ev.Type == atoll.EventSynced:
			f.sendReplay(fresh)
			synced = true
		case synced:
			f.sendChange(ev)
		default:
			fresh = append(fresh, ev.Status)
		}
	}
	return synced, atoll.Errorf("watch", f.m.name, atoll.ErrUnavailable, "it ended")
}

// sendReplay passes on a replay, and what has gone since the one before it.
func (f *memberWatch) sendReplay(fresh []atoll.Status) {
	now := time.Now()
	gone := f.last
	f.last = make(map[string]atoll.Status, len(fresh))
	var events []atoll.Event
	for _, st := range fresh {
		delete(gone, st.ID)
		f.last[st.ID] = st.Clone()
		f.s.p.rememberMember(st.ID, f.m)
		events = append(events, atoll.Event{Type: atoll.EventState, Status: st, Time: now})
	}
	for id, st := range gone {
		f.s.p.forgetMember(id)
		st.State, st.Ready, st.Reason = atoll.StateRemoved, false, ""
		events = append(events, atoll.Event{Type: atoll.EventState, Status: st, Time: now})
	}
	f.m.recordAnswer(nil)
	f.s.addEvents(events...)
	f.finishReplay(nil)
}

// sendChange passes on one change.
func (f *memberWatch) sendChange(ev atoll.Event) {
	st := ev.Status
	if st.State == atoll.StateRemoved {
		delete(f.last, st.ID)
		f.s.p.forgetMember(st.ID)
	} else {
		f.last[st.ID] = st.Clone()
		f.s.p.rememberMember(st.ID, f.m)
	}
	f.s.addEvents(ev)
}
