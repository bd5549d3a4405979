package supervisor

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Extend changes when the sandbox expires.
func (b *Box) Extend(_ context.Context, ttl atoll.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	st, err := b.record.Status.Extended(ttl, time.Now())
	if err != nil {
		return err
	}
	before := b.record.Status.Expires
	b.record.Status.Expires = st.Expires
	if err := b.save(); err != nil {
		b.record.Status.Expires = before
		return atoll.E("extend", b.ID(), bootKind(err), err)
	}
	select {
	case b.renewed <- struct{}{}:
	default:
	}
	return nil
}

// expires is when the sandbox's time is over; the zero time is never.
func (b *Box) expires() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.record.Status.Expires
}

// watchTTL removes the sandbox when its time is over.
func (b *Box) watchTTL() {
	for expires := b.expires(); !expires.IsZero(); expires = b.expires() {
		if left := time.Until(expires); left > 0 {
			select {
			case <-b.done:
				return
			case <-b.renewed:
			case <-time.After(left):
			}
			continue
		}
		b.Log.Info("expired")
		b.endAndRemove("its time to live is over")
		return
	}
}

// endAndRemove kills the sandbox, and removes it with its data volume.
func (b *Box) endAndRemove(reason string) {
	if won, _ := b.killToEnd(context.Background()); won {
		_ = b.finish(atoll.StateStopped, reason, nil) // logged
	}
	b.removeSelf(true, removeWait)
	b.leave()
}

// removeWait is how long a keeper waits to remove its sandbox; less than a
// provider, which may hold the lock, waits for the keeper to end.
const removeWait = time.Second

// removeSelf deletes the stopped sandbox from disk, with volumes its data volume
// too, unless somebody else is changing its life for as long as wait: then he
// will, or a sweep.
func (b *Box) removeSelf(volumes bool, wait time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	lock, err := b.dir.Lock(ctx, b.ID())
	if err != nil {
		return
	}
	defer lock.Release()
	opts := atoll.RemoveOptions{Volumes: volumes}
	if err := b.dir.BeginRemoval(b.record, opts); err != nil {
		b.Log.Error("remove", "err", err)
		return
	}
	if !removesItself {
		return
	}
	if err := errors.Join(b.engine.Unmount(), b.Group.Leave(), b.Group.Remove()); err != nil {
		b.Log.Error("remove", "err", err)
		return // what is still mounted would be deleted too
	}
	if err := b.dir.Delete(b.record, opts); err != nil {
		b.Log.Error("remove", "err", err)
	}
	b.dir.TidyRun(filepath.Dir(b.Job.Run))
}
