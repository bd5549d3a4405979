package guestproc

import (
	"context"
	"sync"
	"time"
)

// Detached runs do, which goes on without its caller once it is begun, for limit at most,
// and returns its error; or that of ctx, when that ends first. work counts it meanwhile.
func Detached(ctx context.Context, work *sync.WaitGroup, limit time.Duration, do func(context.Context) error) error {
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

// Every does do whenever that long has passed, until ctx ends or stop is called, which ends
// what is being done, and waits for it.
func Every(ctx context.Context, long time.Duration, do func(context.Context)) (stop func()) {
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
