package api

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/webclient"
)

// An EventSource reconnects after an error that passes, and ends after any other.
func TestEventSourceEnds(t *testing.T) {
	r := newRig(t, Options{})
	ends := []error{atoll.Errorf("watch", "", atoll.ErrUnavailable, "the reader is too slow"), atoll.Errorf("watch", "", atoll.ErrUnsupported, "no changes here")}
	var calls atomic.Int32
	r.watch = func(context.Context) iter.Seq2[atoll.Event, error] {
		end := ends[calls.Add(1)-1]
		return func(yield func(atoll.Event, error) bool) { yield(atoll.Event{}, end) }
	}
	wantStatuses(t, webclient.Start(t, webclient.Order{Client: "events", API: r.server.URL + "/v1/watch"}), 200, 200, 204)

	r, _, _ = withFiles(t, Options{})
	watch := r.server.URL + "/v1/sandboxes/" + fakeID + "/files/watch?path="
	wantStatuses(t, webclient.Start(t, webclient.Order{Client: "events", API: watch + "nothing"}), 200, 204)
}

// wantStatuses checks the statuses of the responses that an EventSource gets until it ends.
func wantStatuses(t testing.TB, c *webclient.Client, want ...float64) {
	t.Helper()
	for _, status := range want {
		if l := c.Next(); l.Status != status {
			t.Fatalf("a response has %+v, want %v", l, status)
		}
	}
	if l := c.Next(); !l.End {
		t.Errorf("the EventSource goes on: %+v", l)
	}
}
