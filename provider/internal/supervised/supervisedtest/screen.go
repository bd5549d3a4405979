//go:build linux

package supervisedtest

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// A Screen stores what is written to it for tests that wait for it. The zero value is empty.
type Screen struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *Screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// Expect waits until the text has appeared, and returns everything up to its end.
func (s *Screen) Expect(t testing.TB, want string) string {
	t.Helper()
	return s.ExpectAfter(t, 0, want)
}

// ExpectAfter is Expect for text at that offset or later.
func (s *Screen) ExpectAfter(t testing.TB, from int, want string) string {
	t.Helper()
	for deadline := time.Now().Add(WaitLimit); ; time.Sleep(time.Millisecond) {
		text := s.String()
		if i := strings.Index(text[min(from, len(text)):], want); i >= 0 {
			return text[:from+i+len(want)]
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited for %q on the screen:\n%s", want, text)
		}
	}
}
