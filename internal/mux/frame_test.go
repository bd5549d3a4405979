package mux

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/hashicorp/yamux"
)

// A counting connection knows how often it was written to.
type counting struct {
	net.Conn
	mu     sync.Mutex
	writes int
}

func (c *counting) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.writes++
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// Header and body of a frame are written at once, and arrive as they are.
func TestFrames(t *testing.T) {
	near, far := net.Pipe()
	count := &counting{Conn: near}
	client, err := yamux.Client(&frames{ReadWriteCloser: count}, yamuxConfig(0))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := yamux.Server(&frames{ReadWriteCloser: far}, yamuxConfig(0))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	const pieces = 20
	piece := bytes.Repeat([]byte("0123456789ab"), 1000) // as long as headers, many times
	got := make(chan []byte, 1)
	go func() {
		s, err := server.AcceptStream()
		if err != nil {
			got <- nil
			return
		}
		data, _ := io.ReadAll(s)
		got <- data
	}()
	s, err := client.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	for range pieces {
		if _, err := s.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if data := <-got; !bytes.Equal(data, bytes.Repeat(piece, pieces)) {
		t.Errorf("%d bytes arrived, want %d as they were", len(data), pieces*len(piece))
	}
	count.mu.Lock()
	defer count.mu.Unlock()
	if most := pieces + 4; count.writes > most { // and the stream's beginning, end and window
		t.Errorf("%d writes, want %d at most", count.writes, most)
	}
}
