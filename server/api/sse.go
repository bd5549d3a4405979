package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

const (
	eventBeat    = 15 * time.Second // a comment is sent so often, to keep proxies from cutting the line
	eventTimeout = time.Minute      // for a client to take one event
	maxEvent     = 16 << 20
)

// An eventWriter sends server-sent events. All methods may be called at once.
type eventWriter struct {
	mu   sync.Mutex
	w    http.ResponseWriter
	rc   *http.ResponseController
	id   string // of the request
	ctx  context.Context
	stop context.CancelFunc
	beat sync.WaitGroup
}

// newEventWriter begins the answer. The caller closes it before it returns.
func newEventWriter(ctx context.Context, w http.ResponseWriter) *eventWriter {
	ctx, stop := context.WithCancel(ctx)
	e := &eventWriter{w: w, rc: http.NewResponseController(w), id: RequestID(ctx), ctx: ctx, stop: stop}
	w.Header().Set("Content-Type", mediaSSE)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	_ = e.rc.Flush() // a client that has gone is noticed by the first event
	e.beat.Go(func() { e.keepAlive(ctx) })
	return e
}

func (e *eventWriter) keepAlive(ctx context.Context) {
	tick := time.NewTicker(eventBeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if e.write([]byte(":\n\n")) != nil {
				return
			}
		}
	}
}

func (e *eventWriter) close() {
	e.stop()
	e.beat.Wait()
	_ = e.rc.SetWriteDeadline(time.Time{})
}

func (e *eventWriter) send(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	buf := make([]byte, 0, len(name)+len(data)+16)
	buf = append(buf, "event: "...)
	buf = append(buf, name...)
	buf = append(buf, "\ndata: "...)
	buf = append(buf, data...)
	buf = append(buf, "\n\n"...)
	return e.write(buf)
}

// fail sends err as the last event and returns it.
func (e *eventWriter) fail(err error) error {
	_ = e.send("error", encodeError(err, e.id)) // a client that has gone needs none
	return err
}

func (e *eventWriter) write(b []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	timeout := eventTimeout
	if e.ctx.Err() != nil {
		timeout = closeGrace
	}
	_ = e.rc.SetWriteDeadline(time.Now().Add(timeout)) // not every connection has deadlines
	if _, err := e.w.Write(b); err != nil {
		return err
	}
	return e.rc.Flush()
}

// An event is one that was received.
type event[T any] struct {
	name string
	data T
}

// events makes a request and yields the events of its answer. The end is an
// error, the last pair, unless the caller breaks off before.
func events[T any](ctx context.Context, c *Client, q call) iter.Seq2[event[T], error] {
	return func(yield func(event[T], error) bool) {
		ctx, cancel := c.within(ctx)
		defer cancel()
		var body io.Reader
		if q.body != nil {
			b, err := json.Marshal(q.body)
			if err != nil {
				yield(event[T]{}, atoll.E(q.op, q.id, atoll.ErrInvalid, err))
				return
			}
			body = bytes.NewReader(b)
		}
		resp, err := c.send(ctx, q, body, http.Header{"Accept": {mediaSSE}})
		if err != nil {
			yield(event[T]{}, err)
			return
		}
		defer resp.Body.Close()
		r := eventReader{br: bufio.NewReaderSize(resp.Body, bufferSize)}
		for {
			ev, err := nextEvent[T](&r, q)
			if remote, ok := err.(*atoll.Error); ok {
				if ctx.Err() != nil { // the server only noticed that we are leaving
					yield(event[T]{}, c.fault(ctx, q.op, q.id, remote))
					return
				}
				yield(event[T]{}, remote)
				return
			}
			if err != nil {
				if err == io.EOF {
					err = errors.New("the stream broke off")
				}
				yield(event[T]{}, c.fault(ctx, q.op, q.id, err))
				return
			}
			if ctx.Err() != nil {
				yield(event[T]{}, c.fault(ctx, q.op, q.id, ctx.Err()))
				return
			}
			if !yield(ev, nil) {
				return
			}
		}
	}
}

// nextEvent decodes the next event; an "error" event is returned as the error
// that it carries.
func nextEvent[T any](r *eventReader, q call) (event[T], error) {
	name, data, err := r.next()
	if err != nil {
		return event[T]{}, err
	}
	if name == "error" {
		var w wireError
		if err := json.Unmarshal(data, &w); err != nil {
			return event[T]{}, err
		}
		return event[T]{}, w.err(q.op, q.id)
	}
	ev := event[T]{name: name}
	return ev, json.Unmarshal(data, &ev.data)
}

// An eventReader parses server-sent events as far as an eventWriter makes them.
type eventReader struct{ br *bufio.Reader }

func (r *eventReader) next() (name string, data []byte, err error) {
	for {
		line, err := r.line()
		if err != nil {
			return "", nil, err
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch {
		case len(line) == 0 && data != nil:
			return name, data, nil
		case string(field) == "event":
			name = string(value)
		case string(field) == "data":
			data = append(data, value...)
			if len(data) > maxEvent {
				return "", nil, errors.New("an event is too large")
			}
		}
	}
}

// line reads a line without its end.
func (r *eventReader) line() ([]byte, error) {
	var long []byte
	for {
		part, err := r.br.ReadSlice('\n')
		if err == nil && long == nil {
			return bytes.TrimRight(part, "\r\n"), nil
		}
		long = append(long, part...)
		if len(long) > maxEvent {
			return nil, errors.New("an event is too large")
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		return bytes.TrimRight(long, "\r\n"), err
	}
}
