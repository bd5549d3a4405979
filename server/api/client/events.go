package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// maxEvent is the largest server-sent event that a Client reads, in bytes.
const maxEvent = 16 << 20

// An event is a received server-sent event.
type event[T any] struct {
	name string
	data T
}

// streamEvents makes a request and yields the events of the response. The last pair is an error,
// unless the caller breaks off before.
func streamEvents[T any](ctx context.Context, c *Client, q call) iter.Seq2[event[T], error] {
	return func(yield func(event[T], error) bool) {
		ctx, cancel := c.joinContext(ctx)
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
		resp, err := c.sendRequest(ctx, q, body, http.Header{"Accept": {wire.MediaSSE}})
		if err != nil {
			yield(event[T]{}, err)
			return
		}
		defer resp.Body.Close()
		r := eventReader{br: bufio.NewReaderSize(resp.Body, bufferSize)}
		for {
			ev, err := nextEvent[T](&r, q)
			if remote, ok := err.(*atoll.Error); ok {
				if ctx.Err() != nil { // the server noticed that the client ended the request
					yield(event[T]{}, c.wrapConnError(ctx, q.op, q.id, remote))
					return
				}
				yield(event[T]{}, remote)
				return
			}
			if err != nil {
				if err == io.EOF {
					err = errors.New("the stream ended without a last event")
				}
				yield(event[T]{}, c.wrapConnError(ctx, q.op, q.id, err))
				return
			}
			if ctx.Err() != nil {
				yield(event[T]{}, c.wrapConnError(ctx, q.op, q.id, ctx.Err()))
				return
			}
			if !yield(ev, nil) {
				return
			}
		}
	}
}

// nextEvent decodes the next event. It returns the error in an event "error" as its error.
func nextEvent[T any](r *eventReader, q call) (event[T], error) {
	name, data, err := r.readEvent()
	if err != nil {
		return event[T]{}, err
	}
	if name == "error" {
		var w wire.Error
		if err := json.Unmarshal(data, &w); err != nil {
			return event[T]{}, err
		}
		return event[T]{}, w.ToError(q.op, q.id)
	}
	ev := event[T]{name: name}
	return ev, json.Unmarshal(data, &ev.data)
}

// An eventReader parses server-sent events in the form that an eventWriter sends.
type eventReader struct{ br *bufio.Reader }

// readEvent returns the name and the data of the next event.
func (r *eventReader) readEvent() (name string, data []byte, err error) {
	for {
		line, err := r.readLine()
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
				return "", nil, fmt.Errorf("an event is larger than %s", atoll.Bytes(maxEvent))
			}
		}
	}
}

// readLine returns the next line without its line end.
func (r *eventReader) readLine() ([]byte, error) {
	var long []byte
	for {
		part, err := r.br.ReadSlice('\n')
		if err == nil && long == nil {
			return bytes.TrimRight(part, "\r\n"), nil
		}
		long = append(long, part...)
		if len(long) > maxEvent {
			return nil, fmt.Errorf("an event is larger than %s", atoll.Bytes(maxEvent))
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		return bytes.TrimRight(long, "\r\n"), err
	}
}
