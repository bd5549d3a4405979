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

// What is begun goes on when its caller has gone, until its own time is over.
func TestDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var work sync.WaitGroup
		failed := errors.New("failed")
		if err := guestproc.Detached(t.Context(), &work, time.Hour, func(context.Context) error { return failed }); err != failed {
			t.Errorf("who waits is told %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin, ended := time.Now(), time.Duration(0)
		err := guestproc.Detached(ctx, &work, time.Hour, func(ctx context.Context) error {
			<-ctx.Done()
			ended = time.Since(begin)
			return ctx.Err()
		})
		if waited := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || waited != time.Second {
			t.Errorf("who has gone is told %v after %v", err, waited)
		}
		work.Wait()
		if ended != time.Hour {
			t.Errorf("it went on for %v", ended)
		}
	})
}

// What is done from time to time is done until it is told to stop, which ends it.
func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times, ended := 0, false
		stop := guestproc.Every(t.Context(), time.Minute, func(ctx context.Context) {
			if times++; times == 3 {
				<-ctx.Done()
				ended = true
			}
		})
		time.Sleep(time.Hour)
		if stop(); times != 3 || !ended {
			t.Errorf("it was done %d times, and the last one was ended: %v", times, ended)
		}
		stop() // once more is nothing
	})
}
