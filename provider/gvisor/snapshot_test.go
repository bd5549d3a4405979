//go:build linux

package gvisor_test

import (
	"fmt"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// A sandbox from a snapshot may have other limits than the one that the snapshot was taken of.
func TestSnapshotWithOtherLimits(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Resources: atoll.Resources{Memory: 512 << 20, Processes: 100}})
	l.Sh(sb, "echo kept >/root/f")
	snap, err := atoll.TakeSnapshot(t.Context(), sb)
	l.Must("snapshot", err)
	l.RemoveSandbox(sb)
	for _, r := range []atoll.Resources{{Memory: 512 << 20, Processes: 100}, {}, {Memory: 1 << 30, Processes: 200}, {Memory: 256 << 20}} {
		sb := l.NewSandbox(atoll.Spec{Snapshot: snap.ID, Resources: r})
		if got := l.Sh(sb, "cat /root/f"); got != "kept" {
			t.Errorf("%+v: %q", r, got)
		}
		if got := l.Sh(sb, "bash -c 'ulimit -u'"); r.Processes > 0 && got != fmt.Sprint(r.Processes) {
			t.Errorf("%+v: %s processes", r, got)
		}
		if got, want := l.Sh(sb, "cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/memory.max"), fmt.Sprint(int64(r.WithDefaults().Memory)); got != want {
			t.Errorf("%+v: programs see a memory limit of %s, want %s", r, got, want)
		}
		l.RemoveSandbox(sb)
	}
	l.Must("delete", atoll.RemoveSnapshot(t.Context(), l.Provider, snap.ID))
}
