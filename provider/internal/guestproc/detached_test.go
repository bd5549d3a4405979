package guestproc_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
)

// Detached continues after its caller has gone, until its own limit.
func TestDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var work sync.WaitGroup
		failed := errors.New("failed")
		if err := guestproc.RunDetached(t.Context(), &work, time.Hour, func(context.Context) error { return failed }); err != failed {
			t.Errorf("the waiting caller got %v, want %v", err, failed)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin, ended := time.Now(), time.Duration(0)
		err := guestproc.RunDetached(ctx, &work, time.Hour, func(ctx context.Context) error {
			<-ctx.Done()
			ended = time.Since(begin)
			return ctx.Err()
		})
		if waited := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || waited != time.Second {
			t.Errorf("the caller with a deadline got %v after %v", err, waited)
		}
		work.Wait()
		if ended != time.Hour {
			t.Errorf("do ran for %v, want 1h", ended)
		}
	})
}

// Every repeats do until stop is called, which cancels a running do.
func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times, ended := 0, false
		stop := guestproc.RunEvery(t.Context(), time.Minute, func(ctx context.Context) {
			if times++; times == 3 {
				<-ctx.Done()
				ended = true
			}
		})
		time.Sleep(time.Hour)
		if stop(); times != 3 || !ended {
			t.Errorf("do ran %d times, and stop ended the last one: %v", times, ended)
		}
		stop() // a second call does nothing
	})
}
