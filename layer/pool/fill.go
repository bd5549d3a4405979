package pool

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

const (
	bootTime  = 10 * time.Minute // how long a birth may take, pulling the image included
	maxRest   = 5 * time.Minute  // how long the pool rests at most after failures
	stockLife = 6 * time.Hour    // of stock with a TTL, which is replaced when half of it is over
	lookEvery = 30 * time.Second // how often stock is looked at
	sweepGap  = 10 * time.Minute // how often the stock of others is
)

// poke has somebody look who waits on c.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is known already
	}
}

// keep sees to it that there is stock, until the layer is closed.
func (l *Provider) keep() {
	for {
		rest := l.fill()
		select {
		case <-l.ctx.Done():
			return
		case <-l.wake:
		case <-time.After(rest):
		}
	}
}

// fill begins as many births as there may be, and returns how long there is nothing
// to do unless somebody pokes.
func (l *Provider) fill() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := time.Hour
	for l.boots < l.opts.MaxBoots && !l.closed {
		var next *shelf // that with the least of what it is to have
		now := time.Now()
		for _, sh := range l.shelves {
			lacks := sh.lacks()
			switch {
			case lacks <= 0:
			case now.Before(sh.until):
				rest = min(rest, sh.until.Sub(now))
			case next == nil || lacks*next.Min > next.lacks()*sh.Min:
				next = sh
			}
		}
		if next == nil {
			break
		}
		l.boots++
		next.births++
		l.work.Go(func() { l.bear(next) })
	}
	return rest
}

// lacks is how many sandboxes are to be made.
func (sh *shelf) lacks() int { return sh.Min - len(sh.warm) - sh.births - sh.popped }

// bear makes one sandbox for a shelf.
func (l *Provider) bear(sh *shelf) {
	ctx, cancel := context.WithTimeout(l.ctx, bootTime)
	defer cancel()
	sb, err := l.birth(ctx, sh)
	l.mu.Lock()
	l.boots--
	sh.births--
	closed, first := l.closed, sh.problem == ""
	switch {
	case err == nil:
		sh.stats.Created++
		sh.problem, sh.rest = "", l.opts.rest
		sh.warm = append(sh.warm, item{sb, time.Now()}) // Close finds it there
	case !closed:
		sh.problem, sh.until, sh.rest = err.Error(), time.Now().Add(sh.rest), min(2*sh.rest, maxRest)
	}
	l.mu.Unlock()
	if err != nil && !closed && first {
		l.log.Warn("pool: no sandbox can be made: it is tried again from time to time", "pool", sh.Name, "err", err)
	}
	poke(l.wake)
}

// birth writes down that a sandbox is going to be made, and makes it.
func (l *Provider) birth(ctx context.Context, sh *shelf) (atoll.Sandbox, error) {
	me, err := l.store.Holder(ctx)
	if err != nil {
		return nil, err
	}
	s := sh.Spec.Clone()
	s.ID = newID()
	if s.TTL > 0 {
		s.TTL = atoll.Duration(stockLife)
	}
	l.mu.Lock()
	l.mine[s.ID] = struct{}{}
	l.mu.Unlock()
	w := &store.Warm{ID: s.ID, Project: s.Project, Scope: l.scope, Pool: sh.Name, Holder: me, Made: time.Now()}
	if err = l.store.InsertWarm(ctx, w); err == nil {
		l.opts.step("intent")
		var sb atoll.Sandbox
		if sb, err = l.Provider.Create(ctx, s); err == nil {
			l.opts.step("made")
			return sb, nil
		}
	}
	if dropErr := l.forget(ctx, s.ID); dropErr != nil {
		l.log.Warn("pool: undo", "sandbox", s.ID, "err", dropErr) // the next sweep does it
	}
	return nil, err
}

// forget takes a sandbox that is no more off the books.
func (l *Provider) forget(ctx context.Context, id string) error {
	if err := l.store.DropWarm(context.WithoutCancel(ctx), id); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mine, id)
	delete(l.doomed, id)
	delete(l.known, id)
	return nil
}

// discard removes a sandbox of the stock, which is on no shelf any more. If that
// cannot be, it is tried again from time to time.
func (l *Provider) discard(ctx context.Context, sh *shelf, id string) error {
	l.doom(sh, id)
	return l.bury(ctx, id)
}

// doom notes that a sandbox of the stock is to be removed.
func (l *Provider) doom(sh *shelf, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doomed[id] = sh
}

// bury removes what is doomed, or waits until somebody else has.
func (l *Provider) bury(ctx context.Context, id string) error {
	unlock, err := l.goers.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	return l.buryLocked(ctx, id)
}

func (l *Provider) buryLocked(ctx context.Context, id string) error {
	l.mu.Lock()
	sh := l.doomed[id]
	l.mu.Unlock()
	if sh == nil {
		return nil // it is done, and there may be another one of this id
	}
	err := l.remove(ctx, id)
	if err == nil {
		err = l.forget(ctx, id)
	}
	if err != nil {
		l.log.Warn("pool: a sandbox is not removed yet", "pool", sh.Name, "sandbox", id, "err", err)
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	sh.stats.Destroyed++
	return nil
}

// remove removes a sandbox, whether or not it is there.
func (l *Provider) remove(ctx context.Context, id string) error {
	sb, err := l.Provider.Get(ctx, id)
	if err == nil {
		err = sb.Remove(ctx, atoll.RemoveVolumes())
	}
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	return err
}

// discardAside is discard, without its caller.
func (l *Provider) discardAside(sh *shelf, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doomed[id] = sh
	if !l.closed { // else Close does it
		l.work.Go(func() { _ = l.bury(l.ctx, id) }) // it is told there
	}
}

// empty removes all stock. There are no births any more.
func (l *Provider) empty(ctx context.Context) {
	l.mu.Lock()
	for _, sh := range l.shelves {
		for _, it := range sh.warm {
			l.doomed[it.sb.ID()] = sh
		}
		sh.warm = nil
	}
	for id, r := range l.reserved {
		l.doomed[id] = r.sh
	}
	clear(l.reserved)
	all := maps.Clone(l.doomed)
	l.mu.Unlock()
	var done sync.WaitGroup
	for id := range all {
		done.Go(func() { _ = l.bury(ctx, id) }) // it is told there
	}
	done.Wait()
}

// care looks after stock until the layer is closed: that of this program, and from
// time to time what others have left.
func (l *Provider) care() {
	var swept time.Time
	for {
		if l.opts.Server && time.Since(swept) > sweepGap {
			if err := l.sweep(l.ctx); err != nil && l.ctx.Err() == nil {
				l.log.Warn("pool: what others have left is not removed yet", "err", err)
			}
			swept = time.Now()
		}
		select {
		case <-l.ctx.Done():
			return
		case <-l.check:
		case <-time.After(l.lookEvery()):
		}
		l.lookAfter(l.ctx)
	}
}

// lookEvery is how often stock is looked at: to look at a sandbox is to use it, so
// that it does not stop for want of that.
func (l *Provider) lookEvery() time.Duration {
	every := time.Duration(lookEvery)
	if l.opts.look > 0 {
		every = l.opts.look
	}
	for _, sh := range l.shelves {
		if idle := time.Duration(sh.Spec.IdleStop); idle > 0 {
			every = min(every, idle/3)
		}
	}
	return every
}

// lookAfter takes off the shelves what is of no use, and removes what could not be
// removed before.
func (l *Provider) lookAfter(ctx context.Context) {
	type one struct {
		sh *shelf
		it item
	}
	var all []one
	l.lapse()
	l.mu.Lock()
	doomed := maps.Clone(l.doomed)
	for _, sh := range l.shelves {
		for _, it := range sh.warm {
			all = append(all, one{sh, it})
		}
	}
	l.mu.Unlock()
	for _, o := range all {
		limited, cancel := context.WithTimeout(ctx, l.opts.Patience)
		err := l.healthy(limited, o.sh, o.it)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil && l.unshelve(o.sh, o.it) {
			l.log.Info("pool: a sandbox is of no use and goes", "pool", o.sh.Name, "sandbox", o.it.sb.ID(), "why", err)
			poke(l.wake)
			_ = l.discard(ctx, o.sh, o.it.sb.ID()) // it is told there
		}
	}
	for id := range doomed {
		if unlock, ok := l.goers.Try(id); ok { // else somebody is at it
			_ = l.buryLocked(ctx, id) // as above
			unlock()
		}
	}
}

// unshelve takes it off its shelf, unless somebody else has it by now.
func (l *Provider) unshelve(sh *shelf, it item) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(sh.warm, func(other item) bool { return other.sb == it.sb })
	if i < 0 {
		return false
	}
	sh.warm = slices.Delete(sh.warm, i, i+1)
	return true
}

// sweep removes the stock of programs that have gone, and forgets what was claimed
// and is gone. What it cannot be sure of it leaves alone.
func (l *Provider) sweep(ctx context.Context) error {
	all, err := l.store.Warm(ctx, l.scope)
	if err != nil || len(all) == 0 {
		return err
	}
	me, err := l.store.Holder(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, w := range all {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !w.Claimed.IsZero() {
			errs = append(errs, l.settle(ctx, w))
			continue
		}
		if w.Holder == me {
			continue
		}
		alive, err := l.store.Alive(ctx, w.Holder)
		if err == nil && !alive {
			if err = l.remove(ctx, w.ID); err == nil {
				err = l.forget(ctx, w.ID)
			}
			if err == nil {
				l.log.Info("pool: removed what a program has left", "pool", w.Pool, "sandbox", w.ID)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// settle forgets a claim whose sandbox is gone: its provider does not have it, and
// nobody is about to make it again. Else it is heard of.
func (l *Provider) settle(ctx context.Context, w *store.Warm) error {
	gone, err := l.gone(ctx, w.ID)
	switch {
	case err != nil:
		return err
	case gone:
		return l.forget(ctx, w.ID)
	}
	l.heard(w)
	return nil
}

func (l *Provider) gone(ctx context.Context, id string) (bool, error) {
	if _, err := l.Provider.Get(ctx, id); atoll.KindOf(err) != atoll.ErrNotFound {
		return false, err
	}
	_, err := l.store.Find(ctx, id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return true, nil
	}
	return false, err
}
