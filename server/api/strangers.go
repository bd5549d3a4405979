package api

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// strangers are the connections whose clients have not sent a valid token. They are limited, so that they cannot take
// all descriptors of the server: the oldest one has to go.
type strangers struct {
	limit int

	mu    sync.Mutex
	conns *list.List // of net.Conn, oldest first
	elems map[net.Conn]*list.Element
}

func newStrangers() *strangers {
	return &strangers{limit: min(max(maxDescriptors()/4, 64), 4096), conns: list.New(), elems: map[net.Conn]*list.Element{}}
}

// addConn adds a connection. If there are too many, it closes the oldest one.
func (s *strangers) addConn(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elems[c] = s.conns.PushBack(c)
	if s.conns.Len() > s.limit {
		oldest := s.conns.Front().Value.(net.Conn)
		s.removeLocked(oldest)
		_ = oldest.Close()
	}
}

// removeConn removes a connection that has closed, or whose client has sent a valid token.
func (s *strangers) removeConn(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(c)
}

func (s *strangers) removeLocked(c net.Conn) {
	if e, ok := s.elems[c]; ok {
		s.conns.Remove(e)
		delete(s.elems, c)
	}
}

type admitKey struct{}

// withConn implements http.Server.ConnContext: admitClient finds the connection in the context.
func (s *strangers) withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, admitKey{}, func() { s.removeConn(c) })
}

// strangerGrace is the time that a stranger has to send the body of a request: many clients read the response only after
// that.
const strangerGrace = 5 * time.Second

// limitBody makes the server answer a request without waiting for its body, which it may read for strangerGrace, and
// then close the connection, unless admitClient is called.
func limitBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close")
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(strangerGrace))
	}
}

// admitClient lifts the limits for strangers, because the client of r has sent a valid token.
func admitClient(w http.ResponseWriter, r *http.Request) {
	if admit, ok := r.Context().Value(admitKey{}).(func()); ok {
		admit()
	}
	if r.ContentLength != 0 {
		w.Header().Del("Connection")
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
}
