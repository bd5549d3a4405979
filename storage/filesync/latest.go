package filesync

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// latest is the object of that name: which version is the latest one, and who is at
// work. It is only ever written on the condition that it is as it was read.
type latest struct {
	Version int64  `json:"version,omitempty"` // 0: none yet
	Push    string `json:"push,omitempty"`    // that made it
	SHA256  string `json:"sha256,omitempty"`  // of its state file
	Size    int64  `json:"size,omitempty"`    // of that, in bytes
	// Used is the last number that is void, if that is beyond Version: no version can
	// have it any more.
	Used int64 `json:"used,omitempty"`
	Lock *lock `json:"lock,omitempty"`

	tag string // of the object; "" of none
}

// A lock says who is at work.
type lock struct {
	ID    string `json:"id"`    // drawn by each who takes it
	Owner string `json:"owner"` // for people
	Until int64  `json:"until"` // seconds since 1970, by the owner's clock
	Beat  int64  `json:"beat"`  // counts renewals, so that each writes something else
	// Version is the one that it may be making, and Void are those that programs were
	// making whose locks were left behind: they are to become void, lest anybody
	// takes them for versions.
	Version int64   `json:"version"`
	Void    []int64 `json:"void,omitempty"`
}

// lockExpires is how long a lock holds after its last renewal, which comes three times
// as often. Nobody's clock is trusted with that: who waits looks on for as long.
const lockExpires = 30 * time.Second

// lockForgotten is how long after the end that it names a lock is taken for left
// behind without looking on, whatever the clocks.
const lockForgotten = time.Hour

// maxLatest is how many bytes latest may have.
const maxLatest = 64 << 10

// errNoLatest is for a latest that cannot be read.
var errNoLatest = errors.New("the object latest is damaged: remove it, and a push makes it anew")

// readLatest returns what there is; one without a version if there is nothing.
func (r *Remote) readLatest(ctx context.Context) (*latest, error) {
	body, object, err := r.bucket.Get(ctx, r.latestKey(), 0, -1)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return &latest{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, maxLatest))
	if err != nil {
		return nil, err
	}
	l := &latest{}
	if err := json.Unmarshal(b, l); err != nil || l.Version < 0 || l.Version > 0 && !isPush(l.Push) {
		return nil, r.fail("sync", atoll.ErrInternal, "%w", errors.Join(errNoLatest, err))
	}
	l.tag = object.Tag
	return l, nil
}

// writeLatest writes l if the object is as it was read, or as who has the lock of that
// id has left it.
func (r *Remote) writeLatest(ctx context.Context, l *latest, id string) error {
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
		case same(now, b): // it was written all the same, and only the answer lost
			l.tag = now.tag
			return nil
		case again || atoll.KindOf(err) != atoll.ErrConflict || now.Lock == nil || now.Lock.ID != id:
			return err
		}
		l.tag = now.tag // of a renewal whose answer was lost: nobody else writes that lock
	}
}

func same(l *latest, written []byte) bool {
	b, err := json.Marshal(l)
	return err == nil && bytes.Equal(b, written)
}

// A claim is the right to change what is below the prefix.
type claim struct {
	r      *Remote
	ctx    context.Context // ends when the claim is lost; its cause says why
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when nobody renews it any more

	mu     sync.Mutex
	latest *latest   // as it was written last
	beaten time.Time // when that was, by a clock that goes on while this program is stopped
	tried  bool      // there may be a state file of the version that the lock names
}

// ErrLost is in the chain of the error of a push or a prune that was held up for so long
// that another program took its place.
var ErrLost = errors.New("another program has taken over, for this one did not answer for too long")

func (r *Remote) lost() error { return r.fail("sync", atoll.ErrConflict, "%w", ErrLost) }

// take waits until nobody else changes what is below the prefix, and keeps others from
// it until release. The claim's context is made from ctx. l is latest as it was read
// before, which is not read once more then, or nil.
func (r *Remote) take(ctx context.Context, l *latest) (_ *claim, err error) {
	var seen string // tag
	var since time.Time
	for ; ; l = nil {
		if l == nil {
			if l, err = r.readLatest(ctx); err != nil {
				return nil, err
			}
		}
		if l.tag != seen {
			seen, since = l.tag, time.Now()
		}
		if l.tag == "" { // the first push: later ones rely on what it finds
			if err := objectstore.CheckConditions(ctx, r.bucket, r.prefix); err != nil {
				return nil, err
			}
			if l.Used, err = r.lastNumber(ctx); err != nil {
				return nil, err
			}
		}
		free := l.Lock == nil || time.Since(since) >= r.opts.expire || r.opts.now().After(time.Unix(l.Lock.Until, 0).Add(lockForgotten))
		if free {
			err := r.seize(ctx, l)
			if err == nil {
				return r.hold(ctx, l), nil
			}
			if atoll.KindOf(err) != atoll.ErrConflict {
				return nil, err
			}
			continue // somebody was faster
		}
		select {
		case <-time.After(lockLook):
		case <-ctx.Done():
			return nil, r.fail("sync", atoll.ErrConflict, "%s is at work there: %w", l.Lock.Owner, ctx.Err())
		}
	}
}

// lastNumber is the greatest that is taken, where no latest says it: somebody may have
// removed that, or other programs may have written versions.
func (r *Remote) lastNumber(ctx context.Context) (last int64, err error) {
	for v, err := range r.versions(ctx) {
		if err != nil {
			return 0, err
		}
		if v.Version < maxNumber { // numbers that no clock has shown are not to be outdone
			last = max(last, v.Version)
		}
	}
	return last, nil
}

// maxNumber is far beyond those of versions, and not of all that a key may have.
const maxNumber = 1 << 53

// seize writes a lock of this program into l, in the place of one that was left behind.
// What its owner had begun is made void: a state file without bytes, which is none, and
// in whose place no other can be put.
func (r *Remote) seize(ctx context.Context, l *latest) error {
	mine := &lock{ID: atoll.NewID(), Owner: r.opts.Owner, Version: max(r.opts.now().Unix(), l.Version+1, l.Used+1)}
	if left := l.Lock; left != nil {
		mine.Void = left.Void
		if left.Version > l.Version {
			mine.Void = append(mine.Void, left.Version)
		}
		for _, v := range mine.Void {
			mine.Version = max(mine.Version, v+1)
		}
	}
	l.Lock = mine
	if err := r.beat(ctx, l); err != nil {
		return err
	}
	for _, v := range mine.Void {
		if err := r.void(ctx, v); err != nil {
			return err // the lock is left behind, with what is to be done
		}
	}
	return nil
}

// void has a number be that of no version, for good.
func (r *Remote) void(ctx context.Context, version int64) error {
	_, err := r.bucket.Put(ctx, r.stateKey(version), bytes.NewReader(nil), 0, objectstore.Condition{})
	return err
}

// lockLook is how often who waits for a lock looks at it.
const lockLook = 200 * time.Millisecond

// beat writes a lock once more.
func (r *Remote) beat(ctx context.Context, l *latest) error {
	l.Lock.Until = r.opts.now().Add(r.opts.expire).Unix()
	l.Lock.Beat++
	return r.writeLatest(ctx, l, l.Lock.ID)
}

// hold renews what was taken.
func (r *Remote) hold(ctx context.Context, l *latest) *claim {
	c := &claim{r: r, done: make(chan struct{}), latest: l, beaten: r.opts.now()}
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
			err := c.renew()
			switch {
			case err == nil:
				renewed = time.Now()
			case c.ctx.Err() != nil: // the claim has ended, or another has taken over
			case time.Since(renewed) >= r.opts.expire:
				c.cancel(r.fail("sync", atoll.ErrUnavailable, "%w: %w", ErrLost, err))
			}
		}
	}()
	return c
}

// current is what is written in latest.
func (c *claim) current() latest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.latest
}

func (c *claim) renew() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil
	}
	return c.beat(c.ctx)
}

// beat renews the lock, with mu held. It ends the claim if another has taken over.
func (c *claim) beat(ctx context.Context) error {
	err := c.r.beat(ctx, c.latest)
	switch {
	case err == nil:
		c.beaten = c.r.opts.now()
	case atoll.KindOf(err) == atoll.ErrConflict:
		c.cancel(c.r.lost())
	}
	return err
}

// commit writes that there is another version, and gives the claim up. When it fails,
// it may yet have been written: nobody can tell whose connection is cut.
func (c *claim) commit(version int64, push string, sum SHA256, size int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	l := latest{Version: version, Push: push, SHA256: sum.String(), Size: size, tag: c.latest.tag}
	err := c.end(&l)
	if err == nil {
		return nil
	}
	// Who waited may have begun before this one could ask what became of its write.
	ctx, cancel := c.ending()
	defer cancel()
	if now, readErr := c.r.readLatest(ctx); readErr == nil && now.Push == push {
		c.cancel(errEnded)
		return nil
	}
	return err
}

// try notes that the state file of the version that the lock names is about to be
// written. Who was stopped, perhaps for days, first asks whether it still may be: what
// was void may have been removed since, and not be in the way any more.
func (c *claim) try() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	if away := c.r.opts.now().Round(0).Sub(c.beaten.Round(0)); away < 0 || away >= c.r.opts.expire {
		if err := c.beat(c.ctx); err != nil {
			return err
		}
	}
	c.tried = true
	return nil
}

// release gives the claim up, if that has not been done, and waits until nothing of it
// goes on.
func (c *claim) release() {
	c.mu.Lock()
	cause := context.Cause(c.ctx)
	if !errors.Is(cause, errEnded) && !errors.Is(cause, ErrLost) {
		if err := c.abandon(); err != nil {
			c.r.log.Warn("sync: the lock is left to expire", "at", c.r.String(), "err", err)
		}
	}
	c.cancel(errEnded)
	c.mu.Unlock()
	<-c.done
}

var errEnded = errors.New("the claim has ended")

// abandon gives the claim up without another version.
func (c *claim) abandon() error {
	l := *c.latest
	for _, v := range l.Lock.Void {
		l.Used = max(l.Used, v)
	}
	if c.tried {
		l.Used = max(l.Used, l.Lock.Version)
		ctx, cancel := c.ending()
		defer cancel()
		// Only who could renew the lock knows that the version has not been committed,
		// and will not be by what is still on its way.
		if err := c.beat(ctx); err != nil {
			return err
		}
		if err := c.r.void(ctx, l.Lock.Version); err != nil {
			return err
		}
		l.tag = c.latest.tag
	}
	l.Lock = nil
	return c.end(&l)
}

// ending is the context of how a claim ends, although the caller may have given up.
func (c *claim) ending() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.ctx), lockExpires)
}

// end writes l, which has no lock.
func (c *claim) end(l *latest) error {
	ctx, cancel := c.ending()
	defer cancel()
	err := c.r.writeLatest(ctx, l, c.latest.Lock.ID)
	if atoll.KindOf(err) == atoll.ErrConflict {
		err = c.r.lost()
	}
	if err == nil {
		c.latest = l
		c.cancel(errEnded)
	}
	return err
}

// thisProgram names it for people.
func thisProgram() string {
	host, err := os.Hostname()
	if err != nil {
		host = "a machine without a name"
	}
	return fmt.Sprintf("process %d of %s", os.Getpid(), host)
}
