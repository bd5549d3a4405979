package conversation

import (
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

// Limits of a stream.
const (
	// maxStreamBytes limits the events of a turn in memory. The latest ones are retained, for
	// clients that come late or reconnect.
	maxStreamBytes = 16 << 20
	// readerTimeout limits the time for which a turn waits for a client that is that far
	// behind. Then the client is cut off, and may reconnect; the turn continues.
	readerTimeout = 30 * time.Second
)

// A stream is the events of a turn. It has one writer, and any number of readers.
type stream struct {
	turn          string // its id
	maxBytes      int    // of events
	readerTimeout time.Duration

	mu       sync.Mutex
	events   [][]byte
	first    int64 // number of events[0]; the first event of a turn has 1
	bytes    int
	err      error // set at the end; nil if the turn has ended normally
	ended    bool
	changed  chan struct{} // closed and replaced when there is more to read
	readers  map[*reader]bool
	progress chan struct{} // a reader has read an event or left; capacity 1
}

// A reader is the position of one client in a stream.
type reader struct {
	next int64 // the number of its next event
	lost bool  // it was too slow, and is cut off
}

// newStream returns the empty stream of the turn with an id.
func newStream(turn string) *stream {
	return &stream{
		turn: turn, maxBytes: maxStreamBytes, readerTimeout: readerTimeout, first: 1, changed: make(chan struct{}), readers: map[*reader]bool{}, progress: make(chan struct{}, 1),
	}
}

// addEvent adds an event. If the stream is full, it waits for readers that have not read the
// oldest event, but not longer than readerTimeout, and not after ctx has ended.
func (s *stream) addEvent(ctx context.Context, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.bytes+len(data) > s.maxBytes && len(s.events) > 0 {
		if s.hasSlowReaders() {
			s.waitForReaders(ctx)
		}
		s.bytes -= len(s.events[0])
		s.events[0] = nil
		s.events = s.events[1:]
		s.first++
	}
	s.events = append(s.events, data)
	s.bytes += len(data)
	s.wakeReaders()
}

// hasSlowReaders reports whether a reader has not read the oldest event.
func (s *stream) hasSlowReaders() bool {
	for r := range s.readers {
		if !r.lost && r.next <= s.first {
			return true
		}
	}
	return false
}

// waitForReaders waits until hasSlowReaders returns false. It cuts off the readers that are
// still slow after readerTimeout.
func (s *stream) waitForReaders(ctx context.Context) {
	timer := time.NewTimer(s.readerTimeout)
	defer timer.Stop()
	for s.hasSlowReaders() {
		s.mu.Unlock()
		late := false
		select {
		case <-s.progress:
		case <-timer.C:
			late = true
		case <-ctx.Done():
			late = true
		}
		s.mu.Lock()
		if late {
			for r := range s.readers {
				r.lost = r.lost || r.next <= s.first
			}
			s.wakeReaders()
		}
	}
}

// endStream ends the stream. Readers get err, unless it is nil, after the last event.
func (s *stream) endStream(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended, s.err = true, err
	s.wakeReaders()
}

// wakeReaders wakes the readers that wait for more. The caller holds mu.
func (s *stream) wakeReaders() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// oldestEvent is the position before the oldest event in the stream.
const oldestEvent = -1

// parseEventID returns the number of the event with an id; "" means oldestEvent.
func (s *stream) parseEventID(id string) (int64, error) {
	if id == "" {
		return oldestEvent, nil
	}
	turn, number, ok := strings.Cut(id, ":")
	n, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || n < 0 || turn == "" {
		return 0, atoll.Errorf("stream", id, atoll.ErrInvalid, "Last-Event-ID %q is not the id of an event", id)
	}
	if turn != s.turn {
		return 0, atoll.Errorf("stream", id, atoll.ErrNotExist, "the turn of this event has ended: read the messages of the conversation")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n+1 < s.first {
		return 0, atoll.Errorf("stream", id, atoll.ErrNotExist, "the events after this one have expired: read the messages of the conversation")
	}
	return n, nil // a future number is from the same stream on a server that died
}

// endsAt reports whether the turn has ended and nothing comes after event n.
func (s *stream) endsAt(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended && s.err == nil && n != oldestEvent && n >= s.first+int64(len(s.events))-1
}

// readEvents yields the events after number n, or after oldestEvent, until the stream or ctx
// ends. If it ends with an error, that is the last pair.
func (s *stream) readEvents(ctx context.Context, n int64) iter.Seq2[agent.TurnEvent, error] {
	return func(yield func(agent.TurnEvent, error) bool) {
		r := &reader{next: n + 1}
		s.mu.Lock()
		if n == oldestEvent {
			r.next = s.first
		}
		s.readers[r] = true
		s.mu.Unlock()
		defer s.removeReader(r)
		for {
			batch, number, news, err := s.nextBatch(r)
			for i, data := range batch {
				if !yield(agent.TurnEvent{ID: s.turn + ":" + strconv.FormatInt(number+int64(i), 10), Data: data}, nil) {
					return
				}
				s.countRead(r)
			}
			switch {
			case err != nil:
				yield(agent.TurnEvent{}, err)
				return
			case len(batch) > 0:
				continue
			case news == nil:
				return
			}
			select {
			case <-news:
			case <-ctx.Done():
				yield(agent.TurnEvent{}, ctx.Err())
				return
			}
		}
	}
}

// maxBatch limits the number of events that a reader takes at a time.
const maxBatch = 64

// nextBatch returns r's next events and the number of the first, or a channel to wait for, or
// neither at the end of the stream.
func (s *stream) nextBatch(r *reader) (batch [][]byte, number int64, news <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.lost || r.next < s.first {
		return nil, 0, nil, atoll.Errorf("stream", s.turn, atoll.ErrUnavailable, "this client was too slow: reconnect with Last-Event-ID %s:%d", s.turn, r.next-1)
	}
	if at := r.next - s.first; at < int64(len(s.events)) {
		return slices.Clone(s.events[at:min(at+maxBatch, int64(len(s.events)))]), r.next, nil, nil
	}
	if s.ended {
		return nil, 0, nil, s.err
	}
	return nil, 0, s.changed, nil
}

// countRead advances r by one event.
func (s *stream) countRead(r *reader) {
	s.mu.Lock()
	r.next++
	s.mu.Unlock()
	s.wakeWriter()
}

// removeReader removes a reader.
func (s *stream) removeReader(r *reader) {
	s.mu.Lock()
	delete(s.readers, r)
	s.mu.Unlock()
	s.wakeWriter()
}

// wakeWriter wakes the writer if it waits for readers.
func (s *stream) wakeWriter() {
	select {
	case s.progress <- struct{}{}:
	default: // a wake-up is pending
	}
}
