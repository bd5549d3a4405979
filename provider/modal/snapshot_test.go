//go:build linux

package modal_test

import (
	"context"
	"errors"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// Nothing is left of a snapshot whose caller has gone, though Modal finishes it.
func TestSnapshotIsCancelled(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{})
	there := reopen(t, p)
	handle, err := there.Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	end := make(chan struct{})
	defer theLab.server.Intercept(nil)
	theLab.server.Intercept(func(method string) error {
		if method == "SandboxSnapshotFs" {
			cancel()
			<-end
		}
		return nil
	})
	before := theLab.server.Calls("ImageDelete")
	if _, err := atoll.TakeSnapshot(ctx, handle); !errors.Is(err, context.Canceled) {
		t.Errorf("Snapshot: %v, want it cancelled", err)
	}
	close(end)
	if err := there.Close(); err != nil { // it waits for calls in progress
		t.Error(err)
	}
	if all, err := p.Snapshots(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("Snapshots: %+v, %v; want none", all, err)
	}
	if n := theLab.server.Calls("ImageDelete") - before; n != 1 {
		t.Errorf("%d images were deleted, want that of the snapshot", n)
	}
}
