package filesync

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// acquireLease waits until no other program changes objects below the prefix, and keeps
// others from doing so until the lease is released. The lease's context derives from
// ctx. l is the record if the caller has just read it, else nil.
func (r *Remote) acquireLease(ctx context.Context, l *latestRecord) (_ *lease, err error) {
	w := &wait{r: r, begin: time.Now()}
	for ; ; l = nil {
		if l == nil {
			if l, err = r.readLatest(ctx); err != nil {
				return nil, err
			}
		}
		w.watchRecord(l)
		if l.tag == "" { // the first push checks the service; later ones rely on its result
			if err := objectstore.CheckConditions(ctx, r.bucket, r.prefix); err != nil {
				return nil, err
			}
			if l.Used, err = r.lastNumber(ctx); err != nil {
				return nil, err
			}
		}
		if w.isFree(l.Lock) {
			if err := r.findForeign(ctx, l); err != nil {
				return nil, err
			}
			mine := &lock{ID: atoll.NewID()}
			leave := r.showPresence(mine)
			err := r.seizeLock(ctx, l, mine)
			if err == nil {
				return r.keepLease(ctx, l, leave), nil
			}
			leave()
			if atoll.KindOf(err) != atoll.ErrConflict {
				return nil, err
			}
			continue // another program was faster
		}
		w.reportHolder(l.Lock)
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return nil, r.newError("sync", atoll.ErrConflict, "waiting for %s: %w", l.Lock.Owner, ctx.Err())
		}
	}
}

// lockPoll is the interval at which a waiting program reads the lock.
const lockPoll = 200 * time.Millisecond

// silentWait is the time after which a program says for whom it waits.
const silentWait = time.Second

// A wait for the lock.
type wait struct {
	r     *Remote
	begin time.Time
	tag   string    // of the record
	since time.Time // when the record with that tag was first read
	said  string    // id of the holder that was reported
	again time.Time // when to report it again
}

// watchRecord notes when the record has changed.
func (w *wait) watchRecord(l *latestRecord) {
	if l.tag != w.tag || w.since.IsZero() {
		w.tag, w.since = l.tag, time.Now()
	}
}

// isFree reports whether a lock can be taken: nobody holds it, or its holder is gone.
func (w *wait) isFree(l *lock) bool {
	if l == nil || time.Since(w.since) >= w.r.opts.expire || w.r.opts.now().After(time.Unix(l.Until, 0).Add(lockAbandoned)) {
		return true
	}
	p, ok := w.r.bucket.(objectstore.Presence)
	return ok && p.IsGone(l.ID, l.Presence)
}

// reportHolder logs the holder after a second, and again while the wait lasts.
func (w *wait) reportHolder(l *lock) {
	now := time.Now()
	if now.Sub(w.begin) < silentWait || w.said == l.ID && now.Before(w.again) {
		return
	}
	w.said, w.again = l.ID, now.Add(w.r.opts.expire)
	since := ""
	if l.Since > 0 {
		since = " since " + time.Unix(l.Since, 0).Format(time.TimeOnly)
	}
	end := now.Add(w.r.opts.expire - now.Sub(w.since)).Format(time.TimeOnly)
	w.r.log.Warn(fmt.Sprintf("sync: waiting for %s, at work here%s: if it has died, the wait ends at %s", l.Owner, since, end))
}

// showPresence lets programs of this machine see at once when this one has ended, if the
// bucket can do that.
func (r *Remote) showPresence(l *lock) (end func()) {
	if p, ok := r.bucket.(objectstore.Presence); ok {
		mark, end, err := p.ShowPresence(l.ID)
		if err == nil {
			l.Presence = mark
			return end
		}
		r.log.Debug("sync: others cannot see when this program ends", "at", r.String(), "err", err)
	}
	return func() {}
}

// thisProgram names this program for people.
func thisProgram() string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unnamed machine"
	}
	return fmt.Sprintf("process %d of %s", os.Getpid(), host)
}
