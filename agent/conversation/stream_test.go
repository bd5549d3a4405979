package conversation

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// readStream reads a stream to its end.
func readStream(ctx context.Context, s *stream, after int64) (text string, ids []string, err error) {
	for e, failed := range s.readEvents(ctx, after) {
		if failed != nil {
			return text, ids, failed
		}
		text += string(e.Data)
		ids = append(ids, e.ID)
	}
	return text, ids, nil
}

func TestStream(t *testing.T) {
	s := newStream("turn")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if text, ids, err := readStream(t.Context(), s, 0); text != "abc" || strings.Join(ids, " ") != "turn:1 turn:2 turn:3" || err != nil {
				t.Errorf("a reader got %q, %v, %v", text, ids, err)
			}
		})
	}
	for _, c := range "abc" {
		s.addEvent(t.Context(), []byte{byte(c)})
	}
	s.endStream(nil)
	s.endStream(errors.New("not any more"))
	all.Wait()
	for after, want := range map[string]string{"": "abc", "turn:0": "abc", "turn:2": "c", "turn:3": "", "turn:9": ""} {
		n, err := s.parseEventID(after)
		if err != nil {
			t.Errorf("position of %q: %v", after, err)
			continue
		}
		if text, _, err := readStream(t.Context(), s, n); text != want || err != nil {
			t.Errorf("after %q came %q, %v, want %q", after, text, err, want)
		}
	}
	for _, bad := range []string{"x", ":1", "turn:", "turn:-1", "turn:x", "other:1"} {
		if n, err := s.parseEventID(bad); err == nil {
			t.Errorf("position of %q: %d", bad, n)
		}
	}
	broken := newStream("turn")
	broken.addEvent(t.Context(), []byte("a"))
	broken.endStream(errClosing)
	if text, _, err := readStream(t.Context(), broken, 0); text != "a" || !errors.Is(err, errClosing) {
		t.Errorf("a failed stream: %q, %v", text, err)
	}
}

// A stream retains only the latest events, up to its limit.
func TestStreamLimit(t *testing.T) {
	s := newStream("turn")
	s.maxBytes = 1000
	for i := range 500 {
		s.addEvent(t.Context(), fmt.Appendf(nil, "%010d", i))
	}
	if s.bytes > s.maxBytes || len(s.events) != 100 {
		t.Errorf("%d events of %d bytes are kept", len(s.events), s.bytes)
	}
	if n, err := s.parseEventID(""); err != nil || n != oldestEvent {
		t.Errorf("position of all that is kept: %d, %v", n, err)
	}
	for e, err := range s.readEvents(t.Context(), oldestEvent) { // a late client gets the retained events
		if e.ID != "turn:401" || err != nil {
			t.Errorf("the oldest event: %q, %v", e.ID, err)
		}
		break
	}
	_, err := s.parseEventID("turn:10")
	if atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("position of an expired event: %v", err)
	}
	n, err := s.parseEventID("turn:400")
	if err != nil {
		t.Fatal(err)
	}
	s.endStream(nil)
	if text, _, err := readStream(t.Context(), s, n); len(text) != 1000 || err != nil {
		t.Errorf("%d bytes came, %v", len(text), err)
	}
	s = newStream("turn")
	s.maxBytes = 10
	s.addEvent(t.Context(), make([]byte, 100)) // larger than the limit
	s.addEvent(t.Context(), []byte("a"))
	if len(s.events) != 1 {
		t.Errorf("%d events are kept", len(s.events))
	}
}

// A slow client slows the agent down, and loses nothing. A client that does not read at all is
// cut off, and the agent continues.
func TestSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream("turn")
		s.maxBytes = 100
		got := make(chan string)
		go func() {
			text := ""
			for e, err := range s.readEvents(t.Context(), 0) {
				if err != nil {
					text = err.Error()
					break
				}
				text += string(e.Data)
				time.Sleep(time.Second)
			}
			got <- text
		}()
		synctest.Wait()
		begin := time.Now()
		want := ""
		for i := range 100 {
			s.addEvent(t.Context(), fmt.Appendf(nil, "%010d", i))
			want += fmt.Sprintf("%010d", i)
		}
		if took := time.Since(begin); took < 80*time.Second {
			t.Errorf("the agent was not slowed down: %s", took)
		}
		s.endStream(nil)
		if text := <-got; text != want {
			t.Errorf("the slow client got %d bytes, want %d: %q", len(text), len(want), text)
		}

		s = newStream("turn")
		s.maxBytes = 100
		stuck, goOn := make(chan struct{}), make(chan struct{})
		go func() {
			var last error
			hold := sync.OnceFunc(func() { close(stuck); <-goOn })
			for _, err := range s.readEvents(t.Context(), 0) {
				hold()
				last = err
			}
			got <- fmt.Sprint(last)
		}()
		synctest.Wait()
		begin = time.Now()
		for range 100 {
			s.addEvent(t.Context(), make([]byte, 10))
		}
		<-stuck
		if took := time.Since(begin); took != readerTimeout {
			t.Errorf("a client that does not read held the agent for %s, want %s", took, readerTimeout)
		}
		close(goOn)
		if text := <-got; !strings.Contains(text, "too slow") {
			t.Errorf("it got %q", text)
		}
		// A writer whose context has ended does not wait.
		s = newStream("turn")
		s.maxBytes = 100
		ctx, cancel := context.WithCancel(t.Context())
		s.addEvent(ctx, make([]byte, 10))
		next, leave := iter.Pull2(s.readEvents(t.Context(), 0))
		defer leave()
		next() // only one event
		cancel()
		for range 100 {
			s.addEvent(ctx, make([]byte, 10))
		}
	})
}
