package providertest

import (
	"testing"

	"github.com/seed46cd37a8/atoll"
)

var snapshots = []promise{
	{"a snapshot holds files and processes, and can be started from many times", []need{needSnapshot, needWalls}, func(t *testing.T, h *harness) {
		sb := h.create(t, atoll.Spec{Name: "original", Env: []string{"A=b"}})
		if h.code(t, sb, word("store", "/atoll-snap", "before")) != 0 {
			t.Fatal("the process could not write")
		}
		p, _ := h.started(t, sb, word("ready"))
		snap := h.snapshot(t, sb)
		if snap.Sandbox != sb.ID() || snap.Version == "" || snap.Created.IsZero() || snap.Spec.Name != "original" {
			t.Errorf("the snapshot is %+v", snap)
		}
		if st := h.status(t, sb); st.State != atoll.StateRunning {
			t.Errorf("the sandbox is %s after the snapshot", st.State)
		}
		if err := p.Signal(h.ctx(t), atoll.SIGCONT); err != nil {
			t.Errorf("Signal: %v; the process should run on", err)
		}
		if h.code(t, sb, word("store", "/atoll-snap", "after")) != 0 {
			t.Fatal("the process could not write")
		}
		for range 2 {
			fork := h.create(t, atoll.Spec{Snapshot: snap.ID})
			if fork.ID() == sb.ID() {
				t.Error("the fork has the id of the original")
			}
			if got := h.output(t, fork, program("cat", "/atoll-snap")); got != "before" {
				t.Errorf("the fork's file holds %q, want what it held then", got)
			}
			if h.code(t, fork, word("store", "/atoll-snap", "forked")) != 0 {
				t.Error("the process could not write")
			}
		}
		if got := h.output(t, sb, program("cat", "/atoll-snap")); got != "after" {
			t.Errorf("the original's file holds %q", got)
		}
	}},
	{"a snapshot outlives its sandbox, until it is removed", []need{needSnapshot}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		snap := h.snapshot(t, sb)
		if err := sb.Remove(h.ctx(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		all, err := atoll.Snapshots(h.ctx(t), h.p)
		if err != nil || len(all) != 1 || all[0].ID != snap.ID {
			t.Errorf("Snapshots = %+v, %v; want the one", all, err)
		}
		fork := h.create(t, atoll.Spec{Snapshot: snap.ID})
		h.output(t, fork, program("echo", "works"))
		if err := atoll.RemoveSnapshot(h.ctx(t), h.p, snap.ID); err != nil {
			t.Fatalf("RemoveSnapshot: %v", err)
		}
		h.output(t, fork, program("echo", "still works"))
		wantKind(t, "RemoveSnapshot again", atoll.RemoveSnapshot(h.ctx(t), h.p, snap.ID), atoll.ErrNotExist)
		h.refused(t, atoll.Spec{Snapshot: snap.ID}, atoll.ErrNotExist)
	}},
	{"a stopped sandbox has nothing to take a snapshot of", []need{needSnapshot}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		if err := sb.Stop(h.ctx(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		_, err := atoll.TakeSnapshot(h.ctx(t), sb)
		wantKind(t, "TakeSnapshot", err, atoll.ErrStopped)
	}},
}

// snapshot takes one, which goes with the subtest.
func (h *harness) snapshot(t *testing.T, sb atoll.Sandbox) atoll.Snapshot {
	t.Helper()
	snap, err := atoll.TakeSnapshot(h.ctx(t), sb)
	if err != nil {
		t.Fatalf("TakeSnapshot: %v", err)
	}
	t.Cleanup(func() {
		err := atoll.RemoveSnapshot(h.ctx(t), h.p, snap.ID)
		if err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
			t.Errorf("RemoveSnapshot: %v", err)
		}
	})
	return snap
}
