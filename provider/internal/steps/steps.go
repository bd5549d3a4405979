// Package steps runs named steps in order and stops at the first error.
package steps

import (
	"context"
	"time"
)

// A Step is one of them.
type Step struct {
	Name string // for people
	Do   func(ctx context.Context) error
}

// Take takes steps until one fails, or ctx ends, and returns that error. ask, which may be nil,
// is asked before each, by its name: its error is that of the step, which is not taken then.
func Take(ctx context.Context, ask func(name string) error, steps ...Step) error {
	for _, step := range steps {
		if ask != nil {
			if err := ask(step.Name); err != nil {
				return err
			}
		}
		if err := step.Do(ctx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Settle calls do, unless ctx has ended, with one that does not end with it but after limit: a
// service may have done what its client has stopped waiting for, and then nobody would know
// of it.
func Settle(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return do(ctx)
}
