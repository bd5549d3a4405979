//go:build linux

package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// A slowLink is a proxy before a server that is far away, or not: every byte is on its
// way for so long, in each direction, and a connection is made after a way there and
// back. It carries any number of bytes at once. It counts the requests of connections
// that are made while it is told to, which costs time of its own.
type slowLink struct {
	net.Listener
	target   string
	latency  time.Duration
	counts   atomic.Bool
	requests atomic.Int64

	mu    sync.Mutex
	conns map[net.Conn]bool // nil when it is closed
	all   sync.WaitGroup
}

// startSlowLink listens on loopback. Close it.
func startSlowLink(target string, way time.Duration) (*slowLink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &slowLink{Listener: l, target: target, latency: way, conns: map[net.Conn]bool{}}
	s.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			s.all.Go(func() { s.serveConn(c) })
		}
	})
	return s, nil
}

// addConn notes a connection, and closes it when the link is closed already.
func (s *slowLink) addConn(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		c.Close()
		return false
	}
	s.conns[c] = true
	return true
}

func (s *slowLink) removeConn(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	c.Close()
}

// serveConn carries one connection until one end has closed it.
func (s *slowLink) serveConn(near net.Conn) {
	if !s.addConn(near) {
		return
	}
	defer s.removeConn(near)
	made := time.Now().Add(2 * s.latency) // the client takes it for made: what it sends is late
	far, err := net.Dial("tcp", s.target)
	if err != nil || !s.addConn(far) {
		return
	}
	defer s.removeConn(far)
	var both sync.WaitGroup
	both.Go(func() {
		s.copyDelayed(near, far, time.Time{})
		_ = near.(*net.TCPConn).CloseWrite() // it may be closed
	})
	from, counted := io.Reader(near), func() error { return nil }
	if s.counts.Load() {
		there, seen := io.Pipe()
		both.Go(func() { s.countRequests(there) })
		from, counted = io.TeeReader(near, seen), seen.Close
	}
	s.copyDelayed(far, from, made)
	_ = far.(*net.TCPConn).CloseWrite()
	_ = counted()
	both.Wait()
}

// A chunk is what arrived at once, and when it is to go on.
type chunk struct {
	bytes *[32 << 10]byte
	n     int
	due   time.Time
}

// inFlight is how many chunks are on their way: more bytes than loopback carries in
// the time.
const inFlight = 4096

var chunks = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// copyDelayed copies until the end, each byte as much later as the way takes, and what
// arrives before made as if it arrived then.
func (s *slowLink) copyDelayed(to io.Writer, from io.Reader, made time.Time) {
	way := make(chan chunk, inFlight)
	var written sync.WaitGroup
	written.Go(func() {
		var err error
		for c := range way {
			if err == nil { // else whoever sends is told by the end of the connection
				time.Sleep(time.Until(c.due))
				_, err = to.Write(c.bytes[:c.n])
			}
			chunks.Put(c.bytes)
		}
	})
	for {
		b := chunks.Get().(*[32 << 10]byte)
		n, err := from.Read(b[:])
		due := time.Now()
		if due.Before(made) {
			due = made
		}
		way <- chunk{b, n, due.Add(s.latency)}
		if err != nil {
			break
		}
	}
	close(way)
	written.Wait()
}

// countRequests counts the requests of a connection, and reads it to its end.
func (s *slowLink) countRequests(r *io.PipeReader) {
	in := bufio.NewReader(r)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			break
		}
		s.requests.Add(1)
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			break
		}
	}
	_, _ = io.Copy(io.Discard, in)
}

// Close cuts all connections, and waits until none is carried any more.
func (s *slowLink) Close() error {
	err := s.Listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.all.Wait()
	return err
}
