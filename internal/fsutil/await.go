package fsutil

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// AwaitLock takes the lock like TryLock, but waits while another holder has it. If ctx ends
// first, AwaitLock returns its error. Waiters get the lock in no particular order.
func AwaitLock(ctx context.Context, path string) (*Lock, error) {
	const longest = 50 * time.Millisecond
	for delay := time.Millisecond; ; delay = min(2*delay, longest) {
		l, err := TryLock(path) // flock(2) cannot be cancelled
		if !errors.Is(err, ErrLocked) {
			return l, err
		}
		jitter := time.Duration(rand.Int64N(int64(delay))) / 4 // so that waiters do not poll at the same time
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(delay + jitter):
		}
	}
}
