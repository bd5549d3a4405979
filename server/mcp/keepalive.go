package mcp

import (
	"maps"
	"net/http"
	"sync"
	"time"
)

// pingInterval is the time between comments on an open stream. Proxies close a connection that is silent for longer,
// often after a minute.
const pingInterval = 5 * time.Second

// Limits of a comment that the client does not read: in general, and at the end of the response.
const (
	pingTimeout = 30 * time.Second
	lastTimeout = time.Second
)

// A pingWriter is the response to an MCP request, on which keepAlive writes comments between the events.
type pingWriter struct {
	http.ResponseWriter
	every time.Duration

	standing bool // a stream that begins with its header, and not with the result of a call

	header http.Header // for the SDK, if pings may come before its header; else nil

	mu      sync.Mutex
	begun   bool         // the header has been sent; only with header
	first   func([]byte) // gets the first event; nil afterwards
	started bool         // sendComments
	ended   bool
	stop    chan struct{}
	work    sync.WaitGroup
}

func newPingWriter(w http.ResponseWriter, r *http.Request, every time.Duration) *pingWriter {
	return &pingWriter{ResponseWriter: w, every: every, standing: r.Method == http.MethodGet, stop: make(chan struct{})}
}

// Unwrap is for http.ResponseController.
func (w *pingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Header implements http.ResponseWriter.
func (w *pingWriter) Header() http.Header {
	if w.header != nil {
		return w.header
	}
	return w.ResponseWriter.Header()
}

// copyHeader copies the SDK's header, unless a ping has begun the response. w.mu is held.
func (w *pingWriter) copyHeader() {
	if w.header != nil && !w.begun {
		w.begun = true
		maps.Copy(w.ResponseWriter.Header(), w.header)
	}
}

// WriteHeader implements http.ResponseWriter.
func (w *pingWriter) WriteHeader(status int) {
	w.mu.Lock()
	w.copyHeader()
	w.ResponseWriter.WriteHeader(status)
	w.mu.Unlock()
	if w.standing && status == http.StatusOK {
		w.keepAlive()
	}
}

// Write implements http.ResponseWriter. The SDK writes an event by one call.
func (w *pingWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first != nil {
		w.first(b)
		w.first = nil
	}
	w.copyHeader()
	return w.ResponseWriter.Write(b)
}

// FlushError is for http.ResponseController.
func (w *pingWriter) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// keepAlive begins to write comments, until endComments. The header of a stream of events must be complete.
func (w *pingWriter) keepAlive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.started && !w.ended {
		w.started = true
		w.work.Go(w.sendComments)
	}
}

// writePing writes a comment. If it is the beginning of the response, the response is a stream of events.
func (w *pingWriter) writePing() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.header != nil && !w.begun {
		w.begun = true
		w.ResponseWriter.Header().Set("Content-Type", "text/event-stream")
		w.ResponseWriter.Header().Set("Cache-Control", "no-cache, no-transform")
	}
	_, err := w.ResponseWriter.Write([]byte(": ping\n\n"))
	return err
}

// sendComments writes a comment at each interval. The first one also sends the header.
func (w *pingWriter) sendComments() {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		rc := http.NewResponseController(w.ResponseWriter)
		_ = rc.SetWriteDeadline(time.Now().Add(pingTimeout)) // some responses have no deadlines
		err := w.writePing()
		if err == nil {
			err = w.FlushError()
		}
		if err != nil {
			return // the client has gone, or does not read
		}
		_ = rc.SetWriteDeadline(time.Time{})
	}
}

// endComments ends the comments.
func (w *pingWriter) endComments() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	close(w.stop)
	done := make(chan struct{})
	go func() { w.work.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(lastTimeout):
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now())
		<-done
	}
}
