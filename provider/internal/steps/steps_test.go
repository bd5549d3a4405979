package steps

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// Steps are taken in their order, up to the one that fails, is not to be taken, or sees the
// end of its caller.
func TestTake(t *testing.T) {
	failed := errors.New("failed")
	for _, tt := range []struct {
		what, fail, deny, end string
		taken                 string
		err                   error
	}{
		{what: "all", taken: "a b c"},
		{what: "one fails", fail: "b", taken: "a b", err: failed},
		{what: "one is not to be taken", deny: "b", taken: "a", err: failed},
		{what: "the caller has gone", end: "b", taken: "a b", err: context.Canceled},
		{what: "the caller has gone in the last one", end: "c", taken: "a b c", err: context.Canceled},
	} {
		ctx, end := context.WithCancel(t.Context())
		var taken []string
		step := func(name string) Step {
			return Step{name, func(context.Context) error {
				taken = append(taken, name)
				if name == tt.end {
					end()
				}
				if name == tt.fail {
					return failed
				}
				return nil
			}}
		}
		ask := func(name string) error {
			if name == tt.deny {
				return failed
			}
			return nil
		}
		if tt.deny == "" {
			ask = nil
		}
		err := Take(ctx, ask, step("a"), step("b"), step("c"))
		if got := strings.Join(taken, " "); got != tt.taken || !errors.Is(err, tt.err) {
			t.Errorf("%s: %q were taken, %v; want %q, %v", tt.what, got, err, tt.taken, tt.err)
		}
		end()
	}
}

// What is begun goes on without its caller, for so long; what is not begun by then is not.
func TestSettle(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	err := Settle(ctx, time.Hour, func(inner context.Context) error {
		end()
		if deadline, ok := inner.Deadline(); !ok || time.Until(deadline) < time.Minute {
			t.Errorf("it has until %v", deadline)
		}
		return inner.Err()
	})
	if err != nil {
		t.Errorf("it has ended with its caller: %v", err)
	}
	err = Settle(ctx, time.Hour, func(context.Context) error {
		t.Error("it was begun for who had gone")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it says %v", err)
	}
}
