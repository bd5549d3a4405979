// Package steps runs named steps in order and stops at the first error.
package steps

import (
	"context"
	"time"
)

// A Step is one named step.
type Step struct {
	Name string // for people
	Do   func(ctx context.Context) error
}

// Run runs steps in order until one fails or ctx ends, and returns that error. If ask is not nil,
// Run calls it with the name of each step first. If ask returns an error, Run returns it and does
// not run the step.
func Run(ctx context.Context, ask func(name string) error, steps ...Step) error {
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

// RunDetached calls do with a context that ends after limit and not with ctx. It does not call do if ctx
// has ended. A service may finish a request after its client has stopped waiting; RunDetached keeps the
// client waiting, so that it learns the result.
func RunDetached(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return do(ctx)
}
