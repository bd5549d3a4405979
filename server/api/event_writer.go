package api

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

const (
	eventPingEvery = 15 * time.Second // interval of comments, which keep proxies from closing the connection
	eventTimeout   = time.Minute      // the most time to write one event
)

// An eventWriter sends server-sent events. Its methods are safe for concurrent use.
type eventWriter struct {
	mu   sync.Mutex
	w    http.ResponseWriter
	rc   *http.ResponseController
	id   string             // id of the request
	ctx  context.Context    // of the stream; its cause is known before anything derived from it ends
	stop context.CancelFunc // ends keepAlive
	beat sync.WaitGroup
}

// newEventWriter sends the response header. The caller must call stopWriter before it returns.
func newEventWriter(ctx context.Context, w http.ResponseWriter) *eventWriter {
	beat, stop := context.WithCancel(ctx)
	e := &eventWriter{w: w, rc: http.NewResponseController(w), id: wire.RequestID(ctx), ctx: ctx, stop: stop}
	w.Header().Set("Content-Type", wire.MediaSSE)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	_ = e.rc.Flush() // the first event reports a client that has disconnected
	e.beat.Go(func() { e.keepAlive(beat) })
	return e
}

// keepAlive sends comments until ctx ends.
func (e *eventWriter) keepAlive(ctx context.Context) {
	tick := time.NewTicker(eventPingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if e.writeBytes([]byte(":\n\n")) != nil {
				return
			}
		}
	}
}

// stopWriter ends keepAlive and resets the write deadline.
func (e *eventWriter) stopWriter() {
	e.stop()
	e.beat.Wait()
	_ = e.rc.SetWriteDeadline(time.Time{})
}

// finalID is the id of an event "error" that a client gets again if it connects again. An EventSource
// does so after each end, and sends the id back: the answer 204 ends it.
const finalID = "end"

// finalDoc describes the end of a stream to clients.
const finalDoc = "An error that does not pass by itself has the id `end`: with it in `Last-Event-ID` the status is 204, so an EventSource does not reconnect."

// isFinal reports whether err has a kind that does not change by itself.
func isFinal(err error) bool {
	switch atoll.KindOf(err) {
	case atoll.ErrInvalid, atoll.ErrDenied, atoll.ErrNotFound, atoll.ErrNotExist, atoll.ErrStopped, atoll.ErrUnsupported:
		return true
	}
	return false
}

// sendEvent sends an event with v as JSON.
func (e *eventWriter) sendEvent(name string, v any) error { return e.sendEventWithID("", name, v) }

// sendEventWithID is sendEvent with an id for the event; "" means none.
func (e *eventWriter) sendEventWithID(id, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	buf := make([]byte, 0, len(id)+len(name)+len(data)+32)
	if id != "" {
		buf = append(buf, "id: "...)
		buf = append(buf, id...)
		buf = append(buf, '\n')
	}
	buf = append(buf, "event: "...)
	buf = append(buf, name...)
	buf = append(buf, "\ndata: "...)
	buf = append(buf, data...)
	buf = append(buf, "\n\n"...)
	return e.writeBytes(buf)
}

// sendError sends err as the last event and returns it. If the server has ended the stream, it sends
// the reason.
func (e *eventWriter) sendError(err error) error {
	if reason := endReason(e.ctx); reason != nil {
		err = reason
	}
	id := ""
	if isFinal(err) {
		id = finalID
	}
	_ = e.sendEventWithID(id, "error", wire.EncodeError(err, e.id)) // fails if the client has disconnected
	return err
}

func (e *eventWriter) writeBytes(b []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	timeout := eventTimeout
	if e.ctx.Err() != nil {
		timeout = closeGrace
	}
	_ = e.rc.SetWriteDeadline(time.Now().Add(timeout)) // some connections have no deadlines
	if _, err := e.w.Write(b); err != nil {
		return err
	}
	return e.rc.Flush()
}
