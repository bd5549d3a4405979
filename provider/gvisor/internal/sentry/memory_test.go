//go:build linux

package sentry

import (
	"slices"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
)

// The guard kills nothing while the sandbox is frozen, when what it kills would not end.
func TestFrozen(t *testing.T) {
	s := &sentry{}
	g := testGuard()
	g.engine = &engine{sentry: s}
	if s.isFrozen() {
		t.Error("frozen before a pause")
	}
	s.paused.Store(true)
	if got := g.relieve(1 << 30); got != 0 {
		t.Errorf("relieve while paused = %d, want 0", got)
	}
	s.paused.Store(false)
	s.mu.Lock() // as a snapshot
	if got := g.relieve(1 << 30); got != 0 {
		t.Errorf("relieve during a snapshot = %d, want 0", got)
	}
	s.mu.Unlock()
	if s.isFrozen() {
		t.Error("frozen afterwards")
	}
}

// testGuard returns the guard of a sandbox with 128 MiB.
func testGuard() *memoryGuard {
	return &memoryGuard{limits: cgroup.Limits{Memory: 128 << 20}, slack: 32 << 20, much: 16 << 20, killed: map[int32]kill{}}
}

// The guard kills processes that can give memory back, the greatest first. A process that has ended
// has none, even if its parent never asks for its exit.
func TestVictims(t *testing.T) {
	zombie := func(pid int32) processInfo { return processInfo{pid: pid, leaderless: true, ended: true} }
	for name, test := range map[string]struct {
		procs []processInfo
		used  int64
		relief
		want []int32
	}{
		"the greatest": {
			[]processInfo{{pid: 1, memory: 1 << 30}, {pid: 2, memory: 20 << 20}, {pid: 3, memory: 100 << 20}},
			130 << 20, relief{factor: 1}, []int32{3},
		},
		"ended": {
			[]processInfo{zombie(2), zombie(3), {pid: 4, memory: 100 << 20}},
			130 << 20, relief{factor: 1}, []int32{4},
		},
		"only ended": {
			[]processInfo{zombie(2), zombie(3)},
			200 << 20, relief{factor: maxFactor}, nil,
		},
		"enough by now": { // memory came back before the processes stood still
			[]processInfo{{pid: 2, memory: 100 << 20}},
			127 << 20, relief{factor: 4}, nil,
		},
		"ended just now": { // and its memory has yet to come back
			[]processInfo{{pid: 3, memory: 90 << 20}},
			190 << 20, relief{factor: 1, killed: []int32{2}, owing: map[int32]victim{2: {100 << 20, time.Now()}}}, nil,
		},
		"ended long ago": {
			[]processInfo{{pid: 3, memory: 90 << 20}},
			190 << 20, relief{factor: 1, killed: []int32{2}, owing: map[int32]victim{2: {100 << 20, time.Now().Add(-dyingTime)}}}, []int32{3},
		},
		"still dying": {
			[]processInfo{{pid: 2, memory: 100 << 20}, {pid: 3, memory: 90 << 20}},
			190 << 20, relief{factor: 1, killed: []int32{2}, owing: map[int32]victim{2: {100 << 20, time.Now()}}}, []int32{2},
		},
		"no leader": {
			[]processInfo{{pid: 2, leaderless: true}, {pid: 3, memory: 1 << 20}},
			130 << 20, relief{factor: 1}, []int32{2},
		},
		"little memory": {
			[]processInfo{{pid: 2, memory: 2 << 20}, {pid: 3, memory: 1 << 20}},
			130 << 20, relief{factor: 1}, nil,
		},
		"little memory, no slack": {
			[]processInfo{{pid: 2, memory: 2 << 20}, {pid: 3, memory: 1 << 20}},
			190 << 20, relief{factor: 1}, []int32{2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []int32
			for _, p := range testGuard().chooseVictims(test.procs, test.used, &test.relief) {
				got = append(got, p.pid)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("victims are %v, want %v", got, test.want)
			}
		})
	}
}
