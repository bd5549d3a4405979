package guestproc

import (
	"context"
	"sync"
	"time"
)

// RunDetached runs do in a goroutine that work counts, and returns its error. If ctx ends first, RunDetached
// returns the error of ctx, while do continues. The context of do ends after limit, not with ctx.
func RunDetached(ctx context.Context, work *sync.WaitGroup, limit time.Duration, do func(context.Context) error) error {
	done := make(chan error, 1)
	work.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		done <- do(ctx)
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// RunEvery calls do each time the interval long has passed, until ctx ends or stop is called. stop
// cancels the context of a running do and waits for do to return.
func RunEvery(ctx context.Context, long time.Duration, do func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(long):
			}
			do(ctx)
		}
	}()
	return func() { cancel(); <-done }
}
