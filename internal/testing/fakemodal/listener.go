package fakemodal

import (
	"net"
	"sync"
)

// A trackingListener tracks the connections that it has accepted.
type trackingListener struct {
	net.Listener

	mu    sync.Mutex
	conns map[*trackedConn]bool
}

type trackedConn struct {
	net.Conn
	from *trackingListener
}

// Accept implements net.Listener.
func (l *trackingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tracked := &trackedConn{conn, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[tracked] = true
	return tracked, nil
}

// Close implements net.Conn.
func (c *trackedConn) Close() error {
	c.from.mu.Lock()
	delete(c.from.conns, c)
	c.from.mu.Unlock()
	return c.Conn.Close()
}

// Disconnect breaks all connections of clients, which can connect again. Calls in progress may
// continue.
func (s *Server) Disconnect() {
	s.listener.mu.Lock()
	defer s.listener.mu.Unlock()
	for c := range s.listener.conns {
		_ = c.Conn.Close() // the HTTP server handles the broken connection
	}
}
