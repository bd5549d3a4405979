package api

import (
	"context"
	"iter"
	"net/http"

	"github.com/seed46cd37a8/atoll"
)

func (h *Handler) serveWatch(w http.ResponseWriter, r *http.Request) error {
	return serveEvents(h, w, r, func(ctx context.Context) iter.Seq2[atoll.Event, error] { return h.provider.Watch(ctx) },
		func(ev atoll.Event) string { return string(ev.Type) })
}

// serveEvents sends what watch yields, each event under its name, until the
// client has gone, the handler closes or watch ends.
func serveEvents[T any](h *Handler, w http.ResponseWriter, r *http.Request,
	watch func(ctx context.Context) iter.Seq2[T, error], name func(T) string) error {
	ctx, done, err := h.stream(w, r)
	if err != nil {
		return err
	}
	defer done()
	events := newEventWriter(ctx, w)
	defer events.close()
	for ev, err := range watch(ctx) {
		if err == nil {
			err = events.send(name(ev), ev)
		} else if h.ctx.Err() != nil {
			err = events.fail(errClosing)
		} else {
			err = events.fail(err)
		}
		if err != nil {
			return answered(err)
		}
	}
	return nil
}

// Watch implements atoll.Provider.
func (c *Client) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return watchEvents[atoll.Event](ctx, c, call{op: "watch", path: "/v1/watch"})
}

// watchEvents yields the data of the events that the server sends.
func watchEvents[T any](ctx context.Context, c *Client, q call) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for ev, err := range events[T](ctx, c, q) {
			if !yield(ev.data, err) || err != nil {
				return
			}
		}
	}
}

func (h *Handler) serveFileWatch(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	name, recursive := q.str("path"), q.bool("recursive")
	if q.err != nil {
		return q.err
	}
	fs, err := h.filesOf(r)
	if err != nil {
		return err
	}
	watch := func(ctx context.Context) iter.Seq2[fileEvent, error] {
		return func(yield func(fileEvent, error) bool) {
			for ev, err := range fs.Watch(ctx, name, recursive) {
				if !yield(fileEventOf(ev), err) {
					return
				}
			}
		}
	}
	return serveEvents(h, w, r, watch, func(ev fileEvent) string { return string(ev.Type) })
}

// Watch implements atoll.FS.
func (f files) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	q := call{op: "watch", id: f.sb.id, path: f.sb.path + "/files/watch", query: f.query(name)}
	if recursive {
		q.query.Set("recursive", "true")
	}
	return func(yield func(atoll.FileEvent, error) bool) {
		for ev, err := range watchEvents[fileEvent](ctx, f.sb.c, q) {
			if !yield(ev.event(), err) {
				return
			}
		}
	}
}
