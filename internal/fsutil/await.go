package fsutil

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// AwaitLock is TryLock that waits while the lock is held, as long as ctx lasts; then it
// returns ctx's error. Those who wait are not served in any order.
func AwaitLock(ctx context.Context, path string) (*Lock, error) {
	const longest = 50 * time.Millisecond
	for delay := time.Millisecond; ; delay = min(2*delay, longest) {
		l, err := TryLock(path) // flock(2) itself cannot be told to give up
		if !errors.Is(err, ErrLocked) {
			return l, err
		}
		jitter := time.Duration(rand.Int64N(int64(delay))) / 4 // lest many go on asking at the same time
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(delay + jitter):
		}
	}
}
