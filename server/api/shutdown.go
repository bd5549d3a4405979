package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

const (
	lingerTime    = 500 * time.Millisecond // for the next request on each open connection
	shutdownGrace = 10 * time.Second       // for requests in progress
	endGrace      = wire.CreateGrace       // after that, for cancelled requests
)

// A gracefulServer is an http.Server that loses no request when it shuts down: it answers each
// request that it has not executed, so that the client can send it to another server.
// http.Server.Shutdown alone resets the connections that were not accepted yet, and closes the
// connections of requests that are on their way.
type gracefulServer struct {
	http.Server
	doors     []*door
	accepting sync.WaitGroup
	conns     connCount
	strangers *strangers
}

// serveListeners serves on the listeners until they close. The returned channel has room for an
// error of each.
func (s *gracefulServer) serveListeners(listeners []net.Listener) <-chan error {
	s.strangers = newStrangers()
	s.ConnContext = s.strangers.withConn
	s.ConnState = func(c net.Conn, state http.ConnState) {
		s.conns.recordState(c, state)
		switch state {
		case http.StateNew:
			s.strangers.addConn(c)
		case http.StateHijacked, http.StateClosed:
			s.strangers.removeConn(c)
		}
	}
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		d := &door{Listener: l}
		s.doors = append(s.doors, d)
		s.accepting.Go(func() { failed <- s.Serve(d) })
	}
	return failed
}

// shutDown closes h, which refuses requests from then on, closes the listeners, and waits for the
// requests in progress. It calls cut to cancel those that exceed shutdownGrace, and closes their
// connections. Kinds: ErrTimeout.
func (s *gracefulServer) shutDown(h *Handler, cut func()) error {
	h.beginClose()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
		defer cancel()
		for _, d := range s.doors {
			d.closeDrained()
		}
		s.accepting.Wait()
		s.conns.awaitQuiet(ctx, lingerTime)
		if s.Shutdown(ctx) != nil {
			cut()
			_ = s.Close()
		}
		h.requests.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(shutdownGrace + endGrace):
		return atoll.Errorf("serve", "", atoll.ErrTimeout, "a call is still in progress %s after it was cancelled", endGrace)
	}
}

// A door is a listener that accepts all connections that clients have made before it closes.
type door struct {
	net.Listener
	drainEnd atomic.Pointer[time.Time] // when Accept stops at the latest; nil while the door is open
}

// A deadliner is a listener whose Accept can time out.
type deadliner interface{ SetDeadline(t time.Time) error }

// drainTime is the time to accept the connections that are already made.
const drainTime = time.Second

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	for {
		if end := d.drainEnd.Load(); end != nil {
			if !hasPending(d.Listener) || time.Now().After(*end) {
				_ = d.Close() // at once: the kernel resets a connection that is made in between
				return nil, net.ErrClosed
			}
			_ = d.Listener.(deadliner).SetDeadline(*end)
		}
		conn, err := d.Listener.Accept()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return conn, err
		}
	}
}

// closeDrained makes Accept close the listener as soon as no connection is pending, or after drainTime.
// A listener without deadlines has no pending connections, and closes now.
func (d *door) closeDrained() {
	l, ok := d.Listener.(deadliner)
	if !ok {
		_ = d.Close()
		return
	}
	end := time.Now().Add(drainTime)
	d.drainEnd.Store(&end)
	_ = l.SetDeadline(time.Unix(1, 0)) // ends an Accept that blocks; fails if the listener has closed
}

// A connCount counts the connections of a server that are open and not hijacked.
type connCount struct {
	mu       sync.Mutex
	open     int
	lastIdle time.Time     // when a connection finished a request last
	none     chan struct{} // closed once no connection is open; nil if nobody waits for it
}

// recordState implements http.Server.ConnState.
func (c *connCount) recordState(_ net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.open++
	case http.StateIdle:
		c.lastIdle = time.Now()
	case http.StateHijacked, http.StateClosed:
		if c.open--; c.open == 0 && c.none != nil {
			close(c.none)
			c.none = nil
		}
	}
}

// awaitQuiet blocks until no connection is open, or for the time quiet if none finishes a request
// meanwhile: then it begins anew, because a client may use the connection again at once. ctx limits
// that. Only one goroutine may call awaitQuiet.
func (c *connCount) awaitQuiet(ctx context.Context, quiet time.Duration) {
	for begin := time.Now(); ctx.Err() == nil; {
		c.mu.Lock()
		if c.lastIdle.After(begin) {
			begin = c.lastIdle
		}
		left := quiet - time.Since(begin)
		if c.open == 0 || left <= 0 {
			c.mu.Unlock()
			return
		}
		if c.none == nil {
			c.none = make(chan struct{})
		}
		none := c.none
		c.mu.Unlock()
		select {
		case <-none:
		case <-time.After(left):
		case <-ctx.Done():
		}
	}
}
