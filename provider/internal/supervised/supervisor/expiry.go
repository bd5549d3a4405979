package supervisor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// Extend changes the sandbox's expiry.
func (s *Sandbox) Extend(_ context.Context, ttl atoll.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.record.Status.Extended(ttl, time.Now())
	if err != nil {
		return err
	}
	before := s.record.Status.Expires
	s.record.Status.Expires = st.Expires
	if err := s.saveRecord(); err != nil {
		s.record.Status.Expires = before
		return atoll.E("extend", s.ID(), bootKind(err), err)
	}
	select {
	case s.renewed <- struct{}{}:
	default:
	}
	return nil
}

// expiresAt returns the sandbox's expiry; the zero time means never.
func (s *Sandbox) expiresAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.Status.Expires
}

// watchTTL removes the sandbox when it expires.
func (s *Sandbox) watchTTL() {
	for expires := s.expiresAt(); !expires.IsZero(); expires = s.expiresAt() {
		if left := time.Until(expires); left > 0 {
			select {
			case <-s.done:
				return
			case <-s.renewed:
			case <-time.After(left):
			}
			continue
		}
		s.Log.Info("expired")
		s.endAndRemove("its time to live is over")
		return
	}
}

// dirCheck is the time between two looks for the sandbox's directory.
const dirCheck = 10 * time.Second

// watchDir ends the sandbox when somebody has deleted its directory: no provider can find it any more.
func (s *Sandbox) watchDir() {
	for looks := 0; looks < 2; { // a removal may be about to end this supervisor
		select {
		case <-s.done:
			return
		case <-time.After(dirCheck):
		}
		if _, err := os.Lstat(s.Job.Dir); errors.Is(err, fs.ErrNotExist) {
			looks++
		} else {
			looks = 0
		}
	}
	if won, _ := s.killAndBeginEnd(context.Background()); won {
		_ = s.recordEnd(atoll.StateFailed, "its directory was deleted", nil) // there is no place to write it to
	}
	if err := errors.Join(s.engine.Unmount(), s.Group.Leave(), s.Group.Remove(), statedir.RemoveRun(s.Job.Run)); err != nil {
		s.Log.Error("end without a directory", "err", err)
	}
	s.dir.TidyRun(filepath.Dir(s.Job.Run))
	s.finishServing()
}

// endAndRemove kills the sandbox, and removes it with its data volume.
func (s *Sandbox) endAndRemove(reason string) {
	if won, _ := s.killAndBeginEnd(context.Background()); won {
		_ = s.recordEnd(atoll.StateStopped, reason, nil) // logged
	}
	s.removeSelf(true, removeTimeout)
	s.finishServing()
}

// removeTimeout is the time that a supervisor waits for the lock to remove its sandbox; it
// is shorter than the time that a provider, which may hold the lock, waits for the
// supervisor to end.
const removeTimeout = time.Second

// removeSelf deletes the stopped sandbox from disk; if volumes is true, with its data
// volume. If another process holds the sandbox's lock for longer than wait, removeSelf
// leaves the removal to it or to a sweep.
func (s *Sandbox) removeSelf(volumes bool, wait time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	lock, err := s.dir.Lock(ctx, s.ID())
	if err != nil {
		return
	}
	defer lock.Release()
	opts := atoll.RemoveOptions{Volumes: volumes}
	if err := s.dir.BeginRemoval(s.record, opts); err != nil {
		s.Log.Error("remove", "err", err)
		return
	}
	if !canRemoveItself {
		return
	}
	if err := errors.Join(s.engine.Unmount(), s.Group.Leave(), s.Group.Remove()); err != nil {
		s.Log.Error("remove", "err", err)
		return // deleting the directory would delete what is still mounted in it
	}
	if err := s.dir.Delete(s.record, opts); err != nil {
		s.Log.Error("remove", "err", err)
	}
	s.dir.TidyRun(filepath.Dir(s.Job.Run))
}
