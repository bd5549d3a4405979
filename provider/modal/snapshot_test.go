//go:build linux

package modal_test

import (
	"context"
	"errors"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// Of a snapshot that nobody waits for any more nothing is left, though Modal makes it.
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
	if err := there.Close(); err != nil { // which waits for what goes on
		t.Error(err)
	}
	if all, err := p.Snapshots(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("Snapshots: %+v, %v; want none", all, err)
	}
	if n := theLab.server.Calls("ImageDelete") - before; n != 1 {
		t.Errorf("%d images were deleted, want that of the snapshot", n)
	}
}
