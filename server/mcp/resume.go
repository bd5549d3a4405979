package mcp

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"time"
)

// The versions of the protocol in which clients resume streams that broke: from the first on, before the second.
const (
	firstResuming = "2025-11-25"
	lastResuming  = "2026-07-28"
)

// canResume reports whether the client that sent a request may come back for its answer.
func canResume(r *http.Request) bool {
	v := r.Header.Get(version)
	return v >= firstResuming && v < lastResuming
}

// A connection is a request whose response may have a stream of events.
type connection struct {
	session, account string
	end              func() // ends the request soon
	ended            chan struct{}

	stream string // under Server.mu; empty without a stream that can be resumed
}

// streamOf returns the stream of an event, by its id, which ends in the number of the event.
func streamOf(eventID string) string {
	stream, _, _ := strings.Cut(eventID, "_")
	return stream
}

// firstStream returns the stream of the first event in data.
func firstStream(data []byte) string {
	_, rest, found := bytes.Cut(data, []byte("\nid: "))
	if !found {
		return ""
	}
	id, _, _ := bytes.Cut(rest, []byte("\n"))
	return streamOf(string(id))
}

// claimStream makes c the connection of a stream. It ends the one before, which may be dead without a sign, and waits
// for its end.
func (s *Server) claimStream(ctx context.Context, stream string, c *connection) {
	s.mu.Lock()
	old := s.streams[stream]
	mine := old == nil || old.session == c.session && old.account == c.account // else the SDK refuses c
	if stream != "" && mine {
		s.streams[stream], c.stream = c, stream
	}
	s.mu.Unlock()
	if old == nil || old == c || !mine {
		return
	}
	old.end()
	select {
	case <-old.ended:
	case <-ctx.Done():
	}
}

// releaseStream notes the end of c.
func (s *Server) releaseStream(c *connection) {
	s.mu.Lock()
	if c.stream != "" && s.streams[c.stream] == c {
		delete(s.streams, c.stream)
	}
	s.mu.Unlock()
	close(c.ended)
}

// beginResumed notes that the client has resumed a stream, until the returned function is called.
func (x *clientSession) beginResumed() (end func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.resumed++
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.resumed--
		x.away = time.Now()
	}
}

// isAway reports whether the client has no resumed stream, and since when, at the earliest at the given time.
func (x *clientSession) isAway(since time.Time) (bool, time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.away.After(since) {
		since = x.away
	}
	return x.resumed == 0, since
}

// resumeTime bounds the time that a call goes on without a connection to its client.
const resumeTime = 30 * time.Second

// waitAway waits until the client, whose connection has just broken, has had no connection for s.resumeTime. It
// returns false if ctx ends before.
func (s *Server) waitAway(ctx context.Context, x *clientSession) bool {
	for broken := time.Now(); ; {
		wait := s.resumeTime
		if away, since := x.isAway(broken); away {
			wait -= time.Since(since)
		}
		if wait <= 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}
