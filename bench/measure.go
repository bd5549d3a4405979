//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"
)

// A method is one way to do what is compared: it does it once and says how
// long it took.
type method struct {
	row string
	do  func(ctx context.Context) (time.Duration, error)
}

// compareMethods runs the methods in turn, for as many rounds as were asked for, and
// adds them to the table. The first round warms up and does not count.
func (b *bench) compareMethods(ctx context.Context, title string, goals []goal, methods []method) error {
	return b.compareRounds(ctx, b.rounds, title, goals, methods)
}

// compareRounds is compare with another number of rounds.
func (b *bench) compareRounds(ctx context.Context, rounds int, title string, goals []goal, methods []method) error {
	fmt.Fprintf(os.Stderr, "%s", title)
	times := make([]sample, len(methods))
	for round := range rounds + 1 {
		for i, m := range methods {
			took, err := m.do(ctx)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", title, m.row, err)
			}
			if round > 0 {
				times[i] = append(times[i], took)
			}
		}
		fmt.Fprint(os.Stderr, ".")
	}
	fmt.Fprintln(os.Stderr)
	rows := make([]row, len(methods))
	for i, m := range methods {
		slices.Sort(times[i])
		rows[i] = row{m.row, times[i]}
	}
	b.table.comparisons = append(b.table.comparisons, comparison{title, rows, goals})
	return nil
}

// A sample is sorted.
type sample []time.Duration

// valueAt returns the value that a share q of all values does not exceed.
func (s sample) valueAt(q float64) time.Duration {
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

func (s sample) medianTime() time.Duration {
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// firstByte is a writer that remembers when it was first written to.
type firstByte struct{ at time.Time }

func (f *firstByte) Write(p []byte) (int, error) {
	if f.at.IsZero() {
		f.at = time.Now()
	}
	return len(p), nil
}

func formatMillis(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch {
	case ms < 10:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f s", ms/1000)
}
