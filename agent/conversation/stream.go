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

// The bounds of a stream.
const (
	// keptBytes is how much of a turn's events is kept, the latest ones, for those who
	// come late or come again.
	keptBytes = 16 << 20
	// patience is how long a turn waits for a client that is so far behind. Then the
	// client is cut off, and can come again; the turn goes on.
	patience = 30 * time.Second
)

// A stream is the events of a turn, from which any number of clients read. It has one
// writer.
type stream struct {
	turn     string // the id
	kept     int    // keptBytes
	patience time.Duration

	mu      sync.Mutex
	events  [][]byte
	first   int64 // number of events[0]; the first one ever has 1
	bytes   int
	err     error         // why it ended; nil at its end, too
	ended   bool          //
	news    chan struct{} // closed when there is more to read
	readers map[*reader]bool
	read    chan struct{} // a reader has read on; capacity 1
}

// A reader is one client's.
type reader struct {
	next int64 // number of the event that it reads next
	lost bool  // it was too slow
}

func newStream(turn string) *stream {
	return &stream{
		turn: turn, kept: keptBytes, patience: patience, first: 1, news: make(chan struct{}), readers: map[*reader]bool{}, read: make(chan struct{}, 1),
	}
}

// add adds an event. It waits for readers that are far behind, but not for long, nor
// when ctx has ended.
func (s *stream) add(ctx context.Context, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.bytes+len(data) > s.kept && len(s.events) > 0 {
		if s.inTheWay() {
			s.wait(ctx)
		}
		s.bytes -= len(s.events[0])
		s.events[0] = nil
		s.events = s.events[1:]
		s.first++
	}
	s.events = append(s.events, data)
	s.bytes += len(data)
	s.tell()
}

// inTheWay reports whether somebody still is to read the oldest event.
func (s *stream) inTheWay() bool {
	for r := range s.readers {
		if !r.lost && r.next <= s.first {
			return true
		}
	}
	return false
}

// wait waits until nobody is in the way. Whoever is after patience is cut off.
func (s *stream) wait(ctx context.Context) {
	timer := time.NewTimer(s.patience)
	defer timer.Stop()
	for s.inTheWay() {
		s.mu.Unlock()
		late := false
		select {
		case <-s.read:
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
			s.tell()
		}
	}
}

// end ends the stream: with an error, whoever reads gets that at its end.
func (s *stream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended, s.err = true, err
	s.tell()
}

// tell wakes all who wait for more.
func (s *stream) tell() {
	close(s.news)
	s.news = make(chan struct{})
}

// fromOldest is the position before the oldest event that is kept.
const fromOldest = -1

// position reads the id of an event of this stream, "" for fromOldest.
func (s *stream) position(id string) (int64, error) {
	if id == "" {
		return fromOldest, nil
	}
	turn, number, ok := strings.Cut(id, ":")
	n, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || n < 0 || turn == "" {
		return 0, atoll.Errorf("stream", id, atoll.ErrInvalid, "Last-Event-ID %q: is none that an event of ours had", id)
	}
	if turn != s.turn {
		return 0, atoll.Errorf("stream", id, atoll.ErrNotExist, "that turn is over, and another one came after it: what was said is in the messages of the conversation")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n+1 < s.first {
		return 0, atoll.Errorf("stream", id, atoll.ErrNotExist, "what came after that is no longer kept: the messages of the conversation have it")
	}
	return n, nil // one that is yet to come is one of a stream that is being made again
}

// follow yields the events after number n, or fromOldest, until the stream ends, which with an error is
// the last pair, or ctx does.
func (s *stream) follow(ctx context.Context, n int64) iter.Seq2[agent.TurnEvent, error] {
	return func(yield func(agent.TurnEvent, error) bool) {
		r := &reader{next: n + 1}
		s.mu.Lock()
		if n == fromOldest {
			r.next = s.first
		}
		s.readers[r] = true
		s.mu.Unlock()
		defer s.leave(r)
		for {
			batch, number, news, err := s.take(r)
			for i, data := range batch {
				if !yield(agent.TurnEvent{ID: s.turn + ":" + strconv.FormatInt(number+int64(i), 10), Data: data}, nil) {
					return
				}
				s.advance(r)
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

// maxBatch is how many events a reader takes at a time.
const maxBatch = 64

// take returns what r reads next, else what to wait for; neither is at the end.
func (s *stream) take(r *reader) (batch [][]byte, number int64, news <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.lost || r.next < s.first {
		return nil, 0, nil, atoll.Errorf("stream", s.turn, atoll.ErrUnavailable, "this client was too slow: it may come again with Last-Event-ID %s:%d", s.turn, r.next-1)
	}
	if at := r.next - s.first; at < int64(len(s.events)) {
		return slices.Clone(s.events[at:min(at+maxBatch, int64(len(s.events)))]), r.next, nil, nil
	}
	if s.ended {
		return nil, 0, nil, s.err
	}
	return nil, 0, s.news, nil
}

// advance notes that r has read one more.
func (s *stream) advance(r *reader) {
	s.mu.Lock()
	r.next++
	s.mu.Unlock()
	s.nudge()
}

// leave forgets a reader.
func (s *stream) leave(r *reader) {
	s.mu.Lock()
	delete(s.readers, r)
	s.mu.Unlock()
	s.nudge()
}

// nudge wakes the writer, if it waits.
func (s *stream) nudge() {
	select {
	case s.read <- struct{}{}:
	default: // it is awake
	}
}
