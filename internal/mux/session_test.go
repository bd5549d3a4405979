package mux

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A client detects that the other end has died, and leaves one alone that is only silent.
func TestSilence(t *testing.T) {
	silence := max(6*time.Second, testenv.Scale(4*time.Second)) // of which a busy machine takes less than half to answer
	for _, tt := range []struct {
		what  string
		other func(net.Conn) // the other end
		asks  time.Duration
		ends  bool
	}{
		{"one that has nothing to say", host, silence, false},
		{"one that has died", deaf, silence, true},
		{"one that has died, where nobody asks", deaf, 0, false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel() // they wait
			near, far := net.Pipe()
			defer far.Close()
			s, err := Server(near, tt.asks)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			go tt.other(far)
			patience := 2 * silence
			if tt.ends {
				patience = 20 * silence
			}
			select {
			case <-s.Done():
				if !tt.ends {
					t.Error("it is given up")
				}
			case <-time.After(patience):
				if tt.ends {
					t.Errorf("it is not given up after %s", patience)
				}
			}
		})
	}
}

// host is one that lives.
func host(conn net.Conn) {
	s, err := Client(conn)
	if err != nil {
		panic(err)
	}
	<-s.Done()
}

// deaf plays an end that has died: it reads and never answers.
func deaf(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
