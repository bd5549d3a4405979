package client

import (
	"context"
	"iter"
	"reflect"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// Watch implements atoll.Provider.
func (c *Client) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	q := call{op: "watch", path: "/v1/watch"}
	if c.opts.Patience == 0 {
		return watchEvents[atoll.Event](ctx, c, q)
	}
	return func(yield func(atoll.Event, error) bool) {
		w := resumableWatch{c: c, known: map[string]atoll.Status{}, yield: yield}
		for t := (retrier{c: c}); ; {
			opened := time.Now()
			err := w.watchOnce(ctx, q)
			if time.Since(opened) > stableTime {
				t = retrier{c: c}
			}
			if err == nil || !t.allowRetry(ctx, err, true) {
				if err != nil {
					yield(atoll.Event{}, ctxErr(ctx, err))
				}
				return
			}
		}
	}
}

// A resumableWatch is a Watch over successive connections. It compares the initial events of a new
// connection with the known states, and yields only the changes.
type resumableWatch struct {
	c      *Client
	known  map[string]atoll.Status // last status of each existing sandbox, by id
	synced bool                    // EventSynced was yielded
	yield  func(atoll.Event, error) bool
}

// watchOnce watches over one connection. It returns nil if the caller stops the iteration.
func (w *resumableWatch) watchOnce(ctx context.Context, q call) error {
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
			if !w.reportRemoved(seen, ev.Time) {
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

// reportRemoved yields an event for each known sandbox that is not in seen. It returns false if the
// caller stops the iteration.
func (w *resumableWatch) reportRemoved(seen map[string]bool, now time.Time) bool {
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

// watchEvents yields the data of the server's events.
func watchEvents[T any](ctx context.Context, c *Client, q call) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for ev, err := range streamEvents[T](ctx, c, q) {
			if !yield(ev.data, err) || err != nil {
				return
			}
		}
	}
}

// Watch implements atoll.FS.
func (f files) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	q := call{op: "watch", id: f.sb.id, path: f.sb.path + "/files/watch", query: f.fileQuery(name)}
	if recursive {
		q.query.Set("recursive", "true")
	}
	return func(yield func(atoll.FileEvent, error) bool) {
		for ev, err := range watchEvents[wire.FileEvent](ctx, f.sb.c, q) {
			if !yield(ev.ToFileEvent(), err) {
				return
			}
		}
	}
}
