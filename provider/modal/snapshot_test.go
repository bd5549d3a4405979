//go:build linux

package modal_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Nothing is left of a snapshot that is cancelled while Modal copies the files, though Modal
// finishes the copy.
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

// A snapshot that is cancelled while it is recorded is either returned or not left.
func TestSnapshotIsCancelledLate(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{})
	defer theLab.server.Intercept(nil)
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		var copied atomic.Bool
		theLab.server.Intercept(func(method string) error {
			switch {
			case method == "SandboxSnapshotFs":
				copied.Store(true)
			case copied.Load() && method == "DictUpdate":
				cancel()
			}
			return nil
		})
		snap, err := atoll.TakeSnapshot(ctx, sb)
		theLab.server.Intercept(nil)
		if ctx.Err() == nil {
			t.Fatal("the snapshot was not cancelled")
		}
		cancel()
		if err == nil {
			err = p.RemoveSnapshot(t.Context(), snap.ID)
		} else if errors.Is(err, context.Canceled) {
			err = nil
		}
		if err != nil {
			t.Error(err)
		}
		time.Sleep(100 * time.Millisecond) // for a call that goes on without its caller
		if all, err := p.Snapshots(t.Context()); err != nil || len(all) > 0 {
			t.Fatalf("Snapshots: %+v, %v; want none", all, err)
		}
	}
}
