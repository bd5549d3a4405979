package docker

import (
	"context"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// lockTimeout bounds how long an operation waits for another one on the same sandbox, on hardware.
const lockTimeout = time.Minute

// acquireLock waits for a lock that all programs of this machine share. The caller releases it.
// Kinds: ErrConflict.
func (p *Provider) acquireLock(ctx context.Context, op, what string) (*fsutil.Lock, error) {
	within, cancel := context.WithTimeout(ctx, p.slowFactor(ctx)*lockTimeout)
	defer cancel()
	l, err := fsutil.AwaitLock(within, p.lockPath(what))
	switch {
	case err == nil:
		return l, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case within.Err() != nil:
		return nil, atoll.Errorf(op, what, atoll.ErrConflict, "another operation on this sandbox is in progress")
	}
	return nil, atoll.E(op, what, atoll.KindOf(err), err)
}

func (p *Provider) lockPath(what string) string { return filepath.Join(p.opts.Dir, "locks", what) }
