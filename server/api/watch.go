package api

import (
	"context"
	"iter"
	"net/http"
	"reflect"
	"time"

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
	q := call{op: "watch", path: "/v1/watch"}
	if c.opts.Patience == 0 {
		return watchEvents[atoll.Event](ctx, c, q)
	}
	return func(yield func(atoll.Event, error) bool) {
		w := watching{c: c, known: map[string]atoll.Status{}, yield: yield}
		for t := (trial{c: c}); ; {
			opened := time.Now()
			err := w.once(ctx, q)
			if time.Since(opened) > lasting {
				t = trial{c: c}
			}
			if err == nil || !t.again(ctx, err, true) {
				if err != nil {
					yield(atoll.Event{}, ctxErr(ctx, err))
				}
				return
			}
		}
	}
}

// A watching is a Watch over one connection after the other: what another server says at
// its beginning is compared with what is known, and only what is new is told.
type watching struct {
	c      *Client
	known  map[string]atoll.Status // the last one of each sandbox that is there
	synced bool                    // that was told
	yield  func(atoll.Event, error) bool
}

// once watches over one connection. It returns nil when the caller has had enough.
func (w *watching) once(ctx context.Context, q call) error {
	again, seen := w.synced, map[string]bool{}
	replay := true
	for ev, err := range watchEvents[atoll.Event](ctx, w.c, q) {
		if err != nil {
			return err
		}
		id := ev.Status.ID
		switch {
		case ev.Type == atoll.EventSynced && again:
			replay = false
			if !w.forget(seen, ev.Time) {
				return nil
			}
			continue
		case ev.Type == atoll.EventSynced:
			replay, w.synced = false, true
		case ev.Type == atoll.EventState && ev.Status.State == atoll.StateRemoved:
			if _, known := w.known[id]; again && replay && !known {
				continue
			}
			delete(w.known, id)
		case ev.Type == atoll.EventState:
			seen[id] = true
			if was, known := w.known[id]; known && replay && reflect.DeepEqual(was, ev.Status) {
				continue
			}
			w.known[id] = ev.Status
		}
		if !w.yield(ev, nil) {
			return nil
		}
	}
	return nil
}

// forget tells of what has gone meanwhile.
func (w *watching) forget(seen map[string]bool, now time.Time) bool {
	for id, st := range w.known {
		if seen[id] {
			continue
		}
		delete(w.known, id)
		st.State = atoll.StateRemoved
		if !w.yield(atoll.Event{Type: atoll.EventState, Status: st, Time: now}, nil) {
			return false
		}
	}
	return true
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
