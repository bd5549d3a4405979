package docker

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/disk"
)

// lockWait is how long an operation waits for another one on the same sandbox,
// when its ctx allows more.
const lockWait = time.Minute

// lock keeps the other operations of this machine's programs on the same thing
// out until it is released. Kinds: ErrConflict.
func (p *Provider) lock(ctx context.Context, op, what string) (*disk.Lock, error) {
	deadline := time.Now().Add(lockWait)
	for delay := time.Millisecond; ; delay = min(2*delay, 50*time.Millisecond) {
		l, err := disk.TryLock(p.lockPath(what))
		switch {
		case err == nil:
			return l, nil
		case !errors.Is(err, disk.ErrLocked):
			return nil, atoll.E(op, what, atoll.KindOf(err), err)
		case time.Now().After(deadline):
			return nil, atoll.Errorf(op, what, atoll.ErrConflict, "another operation on this sandbox is in progress")
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(delay):
		}
	}
}

func (p *Provider) lockPath(what string) string { return filepath.Join(p.opts.Dir, "locks", what) }
