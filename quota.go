package atoll

import (
	"context"
	"errors"
	"time"
)

// A waiting error knows when it may be worth trying again.
type waiting interface{ RetryAfter() time.Duration }

// A later is an error that may be gone later.
type later struct {
	error
	after time.Duration
}

func (l later) RetryAfter() time.Duration { return l.after }
func (l later) Unwrap() error             { return l.error }

// WithRetryAfter returns err, as the cause of an ErrExhausted, with the time after
// which it may be worth trying again.
func WithRetryAfter(err error, after time.Duration) error { return later{err, after} }

// RetryAfter is how long to wait before what failed with err is tried again, if that
// is known: a guess, of whoever refused it.
func RetryAfter(err error) (after time.Duration, known bool) {
	var w waiting
	if !errors.As(err, &w) {
		return 0, false
	}
	return w.RetryAfter(), true
}

// CreateInTime is Create, tried again as long as there is no room for the sandbox,
// each time after what RetryAfter says. When ctx ends first, the error is that of the
// last try.
func CreateInTime(ctx context.Context, p Provider, spec *Spec) (Sandbox, error) {
	for {
		sb, err := p.Create(ctx, spec)
		after, known := RetryAfter(err)
		if KindOf(err) != ErrExhausted || !known {
			return sb, err
		}
		timer := time.NewTimer(after)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
	}
}
