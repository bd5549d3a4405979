package steps

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// Take runs steps in order until one fails, ask refuses one, or ctx ends.
func TestTake(t *testing.T) {
	failed := errors.New("failed")
	for _, tt := range []struct {
		what, fail, deny, end string
		taken                 string
		err                   error
	}{
		{what: "all", taken: "a b c"},
		{what: "one fails", fail: "b", taken: "a b", err: failed},
		{what: "ask refuses one", deny: "b", taken: "a", err: failed},
		{what: "ctx ends", end: "b", taken: "a b", err: context.Canceled},
		{what: "ctx ends in the last one", end: "c", taken: "a b c", err: context.Canceled},
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
		err := Run(ctx, ask, step("a"), step("b"), step("c"))
		if got := strings.Join(taken, " "); got != tt.taken || !errors.Is(err, tt.err) {
			t.Errorf("%s: took %q, %v; want %q, %v", tt.what, got, err, tt.taken, tt.err)
		}
		end()
	}
}

// Settle continues without its caller, for limited time. It does not begin after ctx has ended.
func TestSettle(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	err := RunDetached(ctx, time.Hour, func(inner context.Context) error {
		end()
		if deadline, ok := inner.Deadline(); !ok || time.Until(deadline) < time.Minute {
			t.Errorf("deadline %v, want one hour from now", deadline)
		}
		return inner.Err()
	})
	if err != nil {
		t.Errorf("Settle ended with its caller: %v", err)
	}
	err = RunDetached(ctx, time.Hour, func(context.Context) error {
		t.Error("Settle called do after ctx ended")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Settle: %v, want context.Canceled", err)
	}
}
