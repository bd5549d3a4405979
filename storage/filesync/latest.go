package filesync

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// latestRecord is the content of the object "latest": the number of the latest version,
// and the current lock. Every write of it is conditional on the content that was read.
type latestRecord struct {
	Version int64  `json:"version,omitempty"` // 0: no version yet
	Push    string `json:"push,omitempty"`    // the push that made it
	SHA256  string `json:"sha256,omitempty"`  // of its state file
	Size    int64  `json:"size,omitempty"`    // of its state file, in bytes
	// Used is the last void number beyond Version: no version can have it any more.
	Used int64 `json:"used,omitempty"`
	Lock *lock `json:"lock,omitempty"`

	tag     string // of the object; "" if there is none
	foreign int64  // a newer version that another program has written; 0 if there is none
}

// A lock names the program that is changing the place.
type lock struct {
	ID    string `json:"id"`              // random for each holder
	Owner string `json:"owner"`           // for people
	Since int64  `json:"since,omitempty"` // Unix seconds, by the owner's clock
	Until int64  `json:"until"`           // likewise
	Beat  int64  `json:"beat"`            // counts renewals, so that each writes different bytes
	// Version is the number that the holder may be making. Void lists the numbers that
	// holders of earlier, expired locks were making: this holder has to void them, so
	// that they are never taken for versions.
	Version int64   `json:"version"`
	Void    []int64 `json:"void,omitempty"`
	// Files tells that a holder of this lock, or of one before, uses LayoutFiles.
	Files bool `json:"files,omitempty"`
	// Presence tells programs of the same machine whether the holder is gone; see
	// objectstore.Presence.
	Presence string `json:"presence,omitempty"`
}

// lockExpires is the lifetime of a lock after its last renewal; the holder renews it
// three times as often. Clocks of other programs don't matter: a waiting program
// watches the lock for that long, unless it can see that the holder is gone.
const lockExpires = 30 * time.Second

// lockAbandoned is the time after a lock's own end, by any clock, at which it counts as
// abandoned without watching it.
const lockAbandoned = time.Hour

// maxLatest is the most bytes of the object.
const maxLatest = 64 << 10

// errNoLatest is the error for an unreadable object.
var errNoLatest = errors.New("object latest is damaged: remove it; the next push creates it again")

// readLatest returns the record; one without a version if there is no object.
func (r *Remote) readLatest(ctx context.Context) (*latestRecord, error) {
	body, object, err := r.bucket.Get(ctx, r.latestKey(), 0, -1)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return &latestRecord{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, maxLatest))
	if err != nil {
		return nil, err
	}
	l := &latestRecord{}
	if err := json.Unmarshal(b, l); err != nil || l.Version < 0 || l.Version > 0 && !isPush(l.Push) {
		return nil, r.newError("sync", atoll.ErrInternal, "%w", errors.Join(errNoLatest, err))
	}
	l.tag = object.Tag
	return l, nil
}

// writeLatest writes l if the object is unchanged since it was read, or was last
// written by the holder of the lock with that id.
func (r *Remote) writeLatest(ctx context.Context, l *latestRecord, id string) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	for again := false; ; again = true {
		o, err := r.bucket.Put(ctx, r.latestKey(), bytes.NewReader(b), int64(len(b)), objectstore.Condition{Absent: l.tag == "", Tag: l.tag})
		if err == nil {
			l.tag = o.Tag
			return nil
		}
		if ctx.Err() != nil || atoll.KindOf(err) == atoll.ErrDenied {
			return err
		}
		now, readErr := r.readLatest(ctx)
		switch {
		case readErr != nil || now.tag == l.tag:
			return err
		case equalsJSON(now, b): // the write succeeded, but its answer was lost
			l.tag = now.tag
			return nil
		case again || atoll.KindOf(err) != atoll.ErrConflict || now.Lock == nil || now.Lock.ID != id:
			return err
		}
		l.tag = now.tag // after a renewal whose answer was lost: nobody else writes that lock
	}
}

func equalsJSON(l *latestRecord, written []byte) bool {
	b, err := json.Marshal(l)
	return err == nil && bytes.Equal(b, written)
}

// A lease is the exclusive right to change objects below the prefix.
type lease struct {
	r      *Remote
	ctx    context.Context // ends when the lease is lost; its cause tells why
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when renewal has stopped
	leave  func()        // ends the presence of this program, after the lock

	mu        sync.Mutex
	latest    *latestRecord // as last written
	renewedAt time.Time     // time of that write, by a clock that continues while this program is stopped
	attempted bool          // a state file of the lock's version may exist
}

// ErrLost is in the chain of the error of a push or a prune that was held up for so
// long that another program took over.
var ErrLost = errors.New("another program has taken over, since this one did not renew its lock in time")

func (r *Remote) lostError() error { return r.newError("sync", atoll.ErrConflict, "%w", ErrLost) }

// lastNumber returns the greatest version number in use, for a place without a latest
// record: somebody may have removed it, or other programs may have written versions.
func (r *Remote) lastNumber(ctx context.Context) (last int64, err error) {
	for v, err := range r.listVersions(ctx) {
		if err != nil {
			return 0, err
		}
		if v.Version < maxNumber { // a number beyond any clock would leave no greater one
			last = max(last, v.Version)
		}
	}
	return last, nil
}

// maxNumber is far beyond the numbers of versions, and below the greatest number that
// fits into a key.
const maxNumber = 1 << 53

// seizeLock writes a lock of this program into l, replacing an abandoned one. It voids
// the version that the former holder may have begun: it writes an empty state file,
// which is no version and keeps the former holder from writing one in its place.
func (r *Remote) seizeLock(ctx context.Context, l *latestRecord, mine *lock) error {
	mine.Owner, mine.Since, mine.Version = r.opts.Owner, r.opts.now().Unix(), max(r.opts.now().Unix(), l.newestNumber()+1, l.Used+1)
	mine.Files = r.opts.Layout == LayoutFiles
	if left := l.Lock; left != nil {
		mine.Files = mine.Files || left.Files
		mine.Void = left.Void
		if left.Version > l.Version {
			mine.Void = append(mine.Void, left.Version)
		}
		for _, v := range mine.Void {
			mine.Version = max(mine.Version, v+1)
		}
	}
	l.Lock = mine
	if err := r.renewLock(ctx, l); err != nil {
		return err
	}
	for _, v := range mine.Void {
		if err := r.markVoid(ctx, v, mine.Files); err != nil {
			return err // the lock stays, and records the numbers to void
		}
	}
	return nil
}

// renewLock writes the lock with a new expiry.
func (r *Remote) renewLock(ctx context.Context, l *latestRecord) error {
	l.Lock.Until = r.opts.now().Add(r.opts.expire).Unix()
	l.Lock.Beat++
	return r.writeLatest(ctx, l, l.Lock.ID)
}

// keepLease starts the renewal of a lock that this program has just taken.
func (r *Remote) keepLease(ctx context.Context, l *latestRecord, leave func()) *lease {
	c := &lease{r: r, leave: leave, done: make(chan struct{}), latest: l, renewedAt: r.opts.now()}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	go func() {
		defer close(c.done)
		renewed := time.Now()
		for {
			select {
			case <-time.After(r.opts.expire / 3):
			case <-c.ctx.Done():
				return
			}
			err := c.renewLease()
			switch {
			case err == nil:
				renewed = time.Now()
			case c.ctx.Err() != nil: // the lease has ended, or another program has taken over
			case time.Since(renewed) >= r.opts.expire:
				c.cancel(r.newError("sync", atoll.ErrUnavailable, "%w: %w", ErrLost, err))
			}
		}
	}()
	return c
}

// currentRecord returns a copy of the record as last written.
func (c *lease) currentRecord() latestRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.latest
}

func (c *lease) renewLease() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil
	}
	return c.renewHeld(c.ctx)
}

// renewHeld renews the lock; the caller holds mu. It ends the lease if another program
// has taken over.
func (c *lease) renewHeld(ctx context.Context) error {
	err := c.r.renewLock(ctx, c.latest)
	switch {
	case err == nil:
		c.renewedAt = c.r.opts.now()
	case atoll.KindOf(err) == atoll.ErrConflict:
		c.cancel(c.r.lostError())
	}
	return err
}

// commitVersion writes the record of a new version, and ends the lease. If it returns
// an error, the record may still have been written: a lost connection cannot tell.
func (c *lease) commitVersion(version int64, push string, sum SHA256, size int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	l := latestRecord{Version: version, Push: push, SHA256: sum.String(), Size: size, tag: c.latest.tag}
	err := c.writeFinal(&l)
	if err == nil {
		return nil
	}
	// A waiting program may have taken the lock before this one could check its write.
	ctx, cancel := c.cleanupContext()
	defer cancel()
	if now, readErr := c.r.readLatest(ctx); readErr == nil && now.Push == push {
		c.cancel(errEnded)
		return nil
	}
	return err
}

// beginAttempt notes that the holder is about to write the state file of the lock's
// version. If the program was stopped for long, perhaps for days, it renews the lock
// first: the void file that kept its place may have been removed since.
func (c *lease) beginAttempt() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	if away := c.r.opts.now().Round(0).Sub(c.renewedAt.Round(0)); away < 0 || away >= c.r.opts.expire {
		if err := c.renewHeld(c.ctx); err != nil {
			return err
		}
	}
	c.attempted = true
	return nil
}

// releaseLease ends the lease, if it hasn't ended, and waits until renewal has stopped.
func (c *lease) releaseLease() {
	c.mu.Lock()
	cause := context.Cause(c.ctx)
	if !errors.Is(cause, errEnded) && !errors.Is(cause, ErrLost) {
		if err := c.abandonVersion(); err != nil {
			c.r.log.Warn("sync: could not release the lock; it will expire", "at", c.r.String(), "err", err)
		}
	}
	c.cancel(errEnded)
	c.mu.Unlock()
	<-c.done
	c.leave()
}

var errEnded = errors.New("the lease has ended")

// abandonVersion ends the lease without a new version.
func (c *lease) abandonVersion() error {
	l := *c.latest
	for _, v := range l.Lock.Void {
		l.Used = max(l.Used, v)
	}
	if c.attempted {
		l.Used = max(l.Used, l.Lock.Version)
		ctx, cancel := c.cleanupContext()
		defer cancel()
		// Only a successful renewal proves that the version has not been committed, and
		// that no request in flight will commit it.
		if err := c.renewHeld(ctx); err != nil {
			return err
		}
		if err := c.r.markVoid(ctx, l.Lock.Version, l.Lock.Files); err != nil {
			return err
		}
		l.tag = c.latest.tag
	}
	l.Lock = nil
	return c.writeFinal(&l)
}

// cleanupContext returns the context for ending a lease, also after the caller's
// context has ended.
func (c *lease) cleanupContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.ctx), lockExpires)
}

// writeFinal writes l, which has no lock, and ends the lease.
func (c *lease) writeFinal(l *latestRecord) error {
	ctx, cancel := c.cleanupContext()
	defer cancel()
	err := c.r.writeLatest(ctx, l, c.latest.Lock.ID)
	if atoll.KindOf(err) == atoll.ErrConflict {
		err = c.r.lostError()
	}
	if err == nil {
		c.latest = l
		c.cancel(errEnded)
	}
	return err
}
