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

// A slowLink is a proxy that simulates a distant server. It delays each byte by latency in each
// direction, and a new connection by a round trip. It does not limit the bandwidth. While counts is
// set, it counts the requests of new connections, which costs time.
type slowLink struct {
	net.Listener
	target   string
	latency  time.Duration
	counts   atomic.Bool
	requests atomic.Int64

	mu    sync.Mutex
	conns map[net.Conn]bool // nil when the link is closed
	all   sync.WaitGroup
}

// startSlowLink starts a link that listens on loopback. The caller must close it.
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

// addConn records a connection. If the link is closed, it closes the connection and returns false.
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

// removeConn closes a connection and forgets it.
func (s *slowLink) removeConn(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	c.Close()
}

// serveConn copies one connection until one end has closed it.
func (s *slowLink) serveConn(near net.Conn) {
	if !s.addConn(near) {
		return
	}
	defer s.removeConn(near)
	made := time.Now().Add(2 * s.latency) // the client already sees a connection; delay its bytes
	far, err := net.Dial("tcp", s.target)
	if err != nil || !s.addConn(far) {
		return
	}
	defer s.removeConn(far)
	var both sync.WaitGroup
	both.Go(func() {
		s.copyDelayed(near, far, time.Time{})
		_ = near.(*net.TCPConn).CloseWrite() // it may be closed already
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

// A chunk holds bytes that arrived together, and the time at which to pass them on.
type chunk struct {
	bytes *[32 << 10]byte
	n     int
	due   time.Time
}

// inFlight is the number of chunks on their way at most: more than loopback carries within the latency.
const inFlight = 4096

var chunks = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// copyDelayed copies until the end of from, and delays each byte by the latency. It treats bytes that
// arrive before made as if they arrived then.
func (s *slowLink) copyDelayed(to io.Writer, from io.Reader, made time.Time) {
	way := make(chan chunk, inFlight)
	var written sync.WaitGroup
	written.Go(func() {
		var err error
		for c := range way {
			if err == nil { // after an error, the end of the connection informs the sender
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

// Close closes all connections, and waits until all copying has ended.
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
