// Package retry repeats calls that fail, with growing pauses between the attempts.
package retry

import (
	"cmp"
	"context"
	"errors"
	"math"
	"os/exec"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/seed46cd37a8/atoll"
)

// jitter is the fraction by which a pause is shorter at most, at random, so that many clients do
// not try again at the same time.
const jitter = 0.2

// A Policy says how long to wait between attempts and when to give up. First is required.
type Policy struct {
	First    time.Duration // longest pause after the first attempt; it doubles after each further one
	Max      time.Duration // longest pause of all; zero means no limit
	Attempts int           // number of attempts; zero means no limit
	Timeout  time.Duration // time from the first attempt to the start of the last; zero means no limit

	// If reports whether to try again after an error that is not permanent. Nil means always.
	If func(err error) bool

	// Notify is called before each pause with the number of failed attempts and the last error.
	// It may be nil.
	Notify func(attempt int, err error)
}

// Do calls f until it succeeds and then returns nil. It returns the error of f if that is
// permanent, if If returns false, or when Attempts or Timeout are used up. If ctx has ended when
// an attempt fails, or ends during a pause, Do returns the cause of that. Do calls f at least once.
func (p Policy) Do(ctx context.Context, f func() error) error {
	attempt := 0
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		attempt++
		err := f()
		if err != nil && (IsPermanent(err) || p.If != nil && !p.If(err)) {
			err = Permanent(err)
		}
		return struct{}{}, err
	},
		backoff.WithBackOff(p.newBackOff()),
		backoff.WithMaxTries(uint(p.Attempts)),
		backoff.WithMaxElapsedTime(p.Timeout),
		backoff.WithNotify(func(err error, _ time.Duration) {
			if p.Notify != nil {
				p.Notify(attempt, err)
			}
		}),
	)
	if last, ok := err.(*backoff.PermanentError); ok { // of the last attempt
		return last.Err
	}
	return err
}

// newBackOff returns the pauses between attempts. The library chooses each between average*(1-r) and
// average*(1+r), where r is the RandomizationFactor.
func (p Policy) newBackOff() backoff.BackOff {
	average := func(longest time.Duration) time.Duration { return time.Duration((1 - jitter/2) * float64(longest)) }
	longest := cmp.Or(p.Max, math.MaxInt64)
	return &backoff.ExponentialBackOff{
		InitialInterval: average(min(p.First, longest)), MaxInterval: average(longest),
		Multiplier: 2, RandomizationFactor: jitter / (2 - jitter),
	}
}

// Permanent marks an error of f that Do returns without another attempt. Do removes the mark.
// Permanent(nil) is nil.
func Permanent(err error) error {
	if _, ok := err.(*backoff.PermanentError); ok {
		return err
	}
	return backoff.Permanent(err)
}

// IsPermanent reports whether another attempt cannot help: err is marked by Permanent, its kind
// is ErrInvalid, ErrDenied, ErrNotFound, ErrUnsupported or ErrCommandNotFound, or it matches
// exec.ErrNotFound because a program is missing on this machine.
func IsPermanent(err error) bool {
	var marked *backoff.PermanentError
	if errors.As(err, &marked) || errors.Is(err, exec.ErrNotFound) {
		return true
	}
	switch atoll.KindOf(err) {
	case atoll.ErrInvalid, atoll.ErrDenied, atoll.ErrNotFound, atoll.ErrUnsupported, atoll.ErrCommandNotFound:
		return true
	}
	return false
}
