package api

import (
	"context"
	"iter"
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func (h *Handler) serveWatch(w http.ResponseWriter, r *http.Request) error {
	return serveEvents(h, w, r, func(ctx context.Context) iter.Seq2[atoll.Event, error] { return h.provider.Watch(ctx) },
		func(ev atoll.Event) string { return string(ev.Type) })
}

// serveEvents sends the values of watch, each as an event with its name, until the client
// disconnects, the handler closes or watch ends. An EventSource that has read a final error gets 204.
func serveEvents[T any](h *Handler, w http.ResponseWriter, r *http.Request,
	watch func(ctx context.Context) iter.Seq2[T, error], name func(T) string) error {
	ctx, done, err := h.beginStream(w, r)
	if err != nil {
		return err
	}
	defer done()
	if r.Header.Get("Last-Event-ID") == finalID {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	events := newEventWriter(ctx, w)
	defer events.stopWriter()
	for ev, err := range watch(ctx) {
		if err == nil {
			err = events.sendEvent(name(ev), ev)
		} else {
			err = events.sendError(err)
		}
		if err != nil {
			return alreadyAnswered(err)
		}
	}
	return nil
}

func (h *Handler) serveFileWatch(w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	name, recursive := q.getString("path"), q.getBool("recursive")
	if q.err != nil {
		return q.err
	}
	release, err := h.shares.reserveShare(r.Context(), "file watches", maxAccountWatches)
	if err != nil {
		return err
	}
	defer release()
	fs, err := h.requestFiles(r)
	if err != nil {
		return err
	}
	watch := func(ctx context.Context) iter.Seq2[wire.FileEvent, error] {
		return func(yield func(wire.FileEvent, error) bool) {
			for ev, err := range fs.Watch(ctx, name, recursive) {
				if !yield(wire.NewFileEvent(ev), err) {
					return
				}
			}
		}
	}
	return serveEvents(h, w, r, watch, func(ev wire.FileEvent) string { return string(ev.Type) })
}
