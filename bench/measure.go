//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"
)

// A method is one way to do the compared operation. do runs it once and returns how long it took.
type method struct {
	row string
	do  func(ctx context.Context) (time.Duration, error)
}

// compareMethods runs the methods in turns for b.rounds rounds, and adds the times to the table. It
// runs one more round first, which does not count.
func (b *bench) compareMethods(ctx context.Context, title string, goals []goal, methods []method) error {
	return b.compareRounds(ctx, b.rounds, title, goals, methods)
}

// compareRounds is like compareMethods, with another number of rounds.
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
		fmt.Fprintf(os.Stderr, "\t%s: %s\n", m.row, formatMillis(times[i].medianTime()))
	}
	b.table.comparisons = append(b.table.comparisons, comparison{title, rows, goals})
	return nil
}

// A sample is a sorted list of times.
type sample []time.Duration

// valueAt returns the q-quantile, for 0 <= q <= 1.
func (s sample) valueAt(q float64) time.Duration {
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// medianTime returns the median.
func (s sample) medianTime() time.Duration {
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// A firstByte is a writer that records the time of its first Write.
type firstByte struct{ at time.Time }

func (f *firstByte) Write(p []byte) (int, error) {
	if f.at.IsZero() {
		f.at = time.Now()
	}
	return len(p), nil
}

// formatMillis formats a time with three digits or so, in ms or s.
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
