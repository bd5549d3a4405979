package main

import (
	"slices"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// The use of CPUs is that since the table before, and unknown if the sandbox was started again.
func TestStatsTable(t *testing.T) {
	began := time.Now()
	sampleAt := func(at, cpu time.Duration) measurement {
		return measurement{
			ID: "0703f0e66b2b4b12", Name: "web", State: atoll.StateRunning, taken: began.Add(at),
			Usage:  &atoll.Usage{Memory: 3 << 20, CPU: atoll.Duration(cpu), Processes: 2},
			limits: atoll.Resources{Memory: 2 << 30, Processes: -1},
		}
	}
	var m meter
	for _, tt := range []struct {
		measurement
		cpu, total string
	}{
		{sampleAt(0, time.Second), "-", "1s"},
		{sampleAt(2*time.Second, 4*time.Second), "150.0%", "4s"},
		{sampleAt(4*time.Second, 4*time.Second), "0.0%", "4s"},
		{sampleAt(6*time.Second, time.Second), "-", "1s"},
	} {
		want := []string{"0703f0e66b2b", "web", "running", tt.cpu, tt.total, "3.0 MiB / 2.0 GiB", "2"}
		if got := m.buildTable([]measurement{tt.measurement}); !slices.Equal(got[1], want) {
			t.Errorf("got %q, want %q", got[1], want)
		}
	}
	unknown := measurement{ID: "0703f0e66b2b4b12", State: atoll.StatePaused}
	want := []string{"0703f0e66b2b", "-", "paused", "-", "-", "-", "-"}
	if got := m.buildTable([]measurement{unknown}); !slices.Equal(got[1], want) {
		t.Errorf("got %q, want %q", got[1], want)
	}
}
