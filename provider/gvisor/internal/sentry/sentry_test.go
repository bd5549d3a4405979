//go:build linux

package sentry

import (
	"slices"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func TestDescendants(t *testing.T) {
	mark := []string{"A=1", processEnv + "=web"}
	procs := []processInfo{
		{pid: 1},
		{pid: 2, ppid: 0, sid: 2},            // what Exec started; it has dropped its environment
		{pid: 3, ppid: 2, sid: 2},            // its child
		{pid: 4, ppid: 3, sid: 4},            // a grandchild in a session of its own
		{pid: 5, ppid: 1, sid: 2},            // an orphan in its session
		{pid: 6, ppid: 1, sid: 6, env: mark}, // an orphan in a session of its own
		{pid: 7, ppid: 6, sid: 6},            // and its child
		{pid: 8, ppid: 0, sid: 8},            // another Exec's
		{pid: 9, ppid: 1, sid: 8, env: []string{processEnv + "=other"}},
	}
	got := findDescendants(procs, 2, "web")
	slices.Sort(got)
	if want := []int32{2, 3, 4, 5, 6, 7}; !slices.Equal(got, want) {
		t.Errorf("descendants = %v, want %v", got, want)
	}
}

func TestCachedFiles(t *testing.T) {
	for _, c := range []struct {
		descriptors uint64
		memory      atoll.Bytes
		want        uint64
	}{
		{1 << 20, 2 << 30, 16384}, {1 << 20, 0, 16384}, {20000, 2 << 30, 5000}, {1024, 0, 256}, {1 << 20, 128 << 20, 2048},
	} {
		if got := cachedFiles(c.descriptors, c.memory); got != c.want {
			t.Errorf("%d descriptors, %v: %d, want %d", c.descriptors, c.memory, got, c.want)
		}
	}
}
