package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Create implements atoll.Provider. Who asks for what a pool has gets the oldest
// of its sandboxes that answers, or that which was reserved; all others, and those
// who find none, one that is made for them.
func (l *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if spec.Name != "" {
		unlock, err := l.names.Lock(ctx, cmp.Or(spec.Project, atoll.DefaultProject)+"/"+spec.Name)
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	sh, err := l.shelfOf(spec)
	if err != nil {
		return nil, err
	}
	if sh == nil && len(l.shelves) > 0 {
		l.mu.Lock()
		l.unmatched++
		l.mu.Unlock()
	}
	r, err := l.redeem(ctx, spec.ID)
	if err != nil {
		return nil, err
	}
	var sb atoll.Sandbox
	switch {
	case r != nil:
		sb, err = l.keepWord(ctx, r, sh, spec)
	case sh != nil && spec.ID == "":
		sb, err = l.take(ctx, sh, spec)
	}
	if sb == nil && err == nil {
		sb, err = l.make(ctx, spec)
	}
	return sb, err
}

// shelfOf is the shelf with what spec asks for, whatever its id is to be; nil if
// there is none.
func (l *Provider) shelfOf(spec *atoll.Spec) (*shelf, error) {
	if len(l.shelves) == 0 {
		return nil, nil
	}
	full, err := spec.MadeBy(l.scope)
	if err != nil {
		return nil, err
	}
	return l.byPrint[l.fingerprint(full)], nil
}

// fingerprint is Fingerprint, with the image that is meant where none is named.
func (l *Provider) fingerprint(full *atoll.Spec) string {
	s := *full
	if s.Image == "" && s.Snapshot == "" {
		s.Image = l.opts.Image
	}
	return Fingerprint(&s)
}

// take gives away a sandbox of a shelf; nil if there is none to be had.
func (l *Provider) take(ctx context.Context, sh *shelf, spec *atoll.Spec) (atoll.Sandbox, error) {
	limited, cancel := context.WithTimeout(ctx, l.opts.Patience) // for all that are looked at
	defer cancel()
	defer poke(l.wake) // not before: to make the next one takes time that this one needs
	for {
		it, ok, err := l.acquire(ctx, limited, sh)
		if !ok {
			return nil, err
		}
		sb, err := l.offer(ctx, sh, it, spec)
		l.popped(sh, sb != nil)
		if !errors.Is(err, errUseless) {
			return sb, err
		}
	}
}

// acquire takes the oldest sandbox that answers off a shelf, as long as limited lasts;
// ok is false if there is none. The caller calls popped.
func (l *Provider) acquire(ctx, limited context.Context, sh *shelf) (it item, ok bool, err error) {
	for {
		it, ok := l.pop(sh, limited.Err() != nil)
		if !ok {
			return item{}, false, nil
		}
		err := l.healthy(limited, sh, it)
		switch {
		case err == nil:
			l.opts.step("healthy")
			return it, true, nil
		case ctx.Err() != nil: // that says nothing about it
			l.putBack(sh, it)
			l.popped(sh, false)
			return item{}, false, ctx.Err()
		}
		l.useless(sh, it, err)
		l.popped(sh, false)
	}
}

// useless has a sandbox removed that is on no shelf any more.
func (l *Provider) useless(sh *shelf, it item, why error) {
	l.log.Info("pool: a sandbox is of no use and goes", "pool", sh.Name, "sandbox", it.sb.ID(), "why", why)
	l.discardAside(sh, it.sb.ID())
	poke(l.check) // others may be so, too
}

// offer gives away a sandbox that is on no shelf any more. nil means that somebody
// else is to decide: who makes sandboxes knows whether the name is free.
func (l *Provider) offer(ctx context.Context, sh *shelf, it item, spec *atoll.Spec) (atoll.Sandbox, error) {
	w, err := l.claim(ctx, sh, it, spec)
	switch kind := atoll.KindOf(err); {
	case kind == atoll.ErrAlreadyExists:
		l.putBack(sh, it)
		return nil, nil
	case kind == atoll.ErrConflict:
		l.log.Warn("pool: stock was taken off the books by somebody else", "pool", sh.Name, "sandbox", it.sb.ID(), "err", err)
		l.discardAside(sh, it.sb.ID())
		return nil, errUseless
	case err != nil:
		l.putBack(sh, it)
		return nil, err
	}
	sb, err := l.give(ctx, sh, it, w)
	if err != nil {
		l.discardAside(sh, it.sb.ID())
	}
	return sb, err
}

// pop takes the oldest sandbox off a shelf. With late there is none to be had. The
// caller calls popped; until then none is made in its place, as it may come back,
// and Close waits.
func (l *Provider) pop(sh *shelf, late bool) (item, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(sh.warm) == 0 || late || l.closed {
		sh.stats.ColdMisses++
		return item{}, false
	}
	it := sh.warm[0]
	sh.warm = slices.Delete(sh.warm, 0, 1)
	sh.popped++
	l.work.Add(1)
	return it, true
}

// popped ends what pop has begun.
func (l *Provider) popped(sh *shelf, hit bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.work.Done()
	sh.popped--
	if hit {
		sh.stats.WarmHits++
	}
}

// putBack undoes pop.
func (l *Provider) putBack(sh *shelf, it item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sh.warm = slices.Insert(sh.warm, 0, it)
}

// healthy says what is wrong with a sandbox of the stock. ctx bounds how long that
// may take.
func (l *Provider) healthy(ctx context.Context, sh *shelf, it item) error {
	st, err := it.sb.Status(ctx)
	switch {
	case err != nil:
		return err
	case st.State != atoll.StateRunning || !st.Ready:
		return fmt.Errorf("it is %s, ready %t %s", st.State, st.Ready, st.Reason)
	case sh.Spec.TTL > 0 && time.Since(it.made) > stockLife/2:
		return errors.New("half of its time is over")
	}
	all, err := atoll.Processes(ctx, it.sb)
	switch {
	case atoll.KindOf(err) == atoll.ErrUnsupported:
	case err != nil:
		return err
	case len(all) > 0:
		return fmt.Errorf("somebody has run %q in it", all[0].Args)
	}
	if sh.Spec.Snapshot != "" || !strings.Contains(st.Image, "sha256:") {
		return nil
	}
	digest, err := atoll.ResolveImage(ctx, l.Provider, sh.Spec.Image)
	if err == nil && digest != "" && !strings.HasSuffix(st.Image, digest) {
		return fmt.Errorf("its image is %s by now", digest)
	}
	return ctx.Err() // without an answer to the last question it is as good as before
}

// errUseless is the error of give when another sandbox will do, and this one not.
var errUseless = errors.New("of no use")

// claim writes down that a sandbox, which is on no shelf any more, is spec's. Kinds:
// ErrAlreadyExists (of the name), ErrConflict (it is not stock any more).
func (l *Provider) claim(ctx context.Context, sh *shelf, it item, spec *atoll.Spec) (*store.Warm, error) {
	me, err := l.store.Holder(ctx)
	if err != nil {
		return nil, err
	}
	w := &store.Warm{
		ID: it.sb.ID(), Project: sh.Spec.Project, Scope: l.scope, Pool: sh.Name, Holder: me, Made: it.made,
		Name: spec.Name, Labels: maps.Clone(spec.Labels), TTL: spec.TTL, Claimed: time.Now().Truncate(time.Millisecond),
	}
	return w, l.store.ClaimWarm(ctx, w)
}

// give gives a sandbox that was claimed what it has not yet. When that fails, it is
// of no use to anybody.
func (l *Provider) give(ctx context.Context, sh *shelf, it item, w *store.Warm) (atoll.Sandbox, error) {
	l.opts.step("claimed")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.opts.Patience) // it is done, or undone
	defer cancel()
	if err := l.dispute(ctx, w); err != nil {
		return nil, err
	}
	if w.TTL > 0 {
		if err := atoll.Extend(ctx, it.sb, w.TTL); err != nil {
			l.log.Warn("pool: a sandbox could not be given its time to live", "pool", sh.Name, "sandbox", w.ID, "err", err)
			return nil, errUseless
		}
	}
	c := l.heard(w)
	l.mu.Lock()
	delete(l.mine, w.ID)
	for c := range l.readers {
		poke(c)
	}
	l.mu.Unlock()
	l.opts.step("given")
	return l.wrap(it.sb, c), nil
}

// dispute is ErrAlreadyExists when a sandbox that is written down nowhere has the
// name of a claim. One that is will be undone by whoever makes it: the claim was
// there before.
func (l *Provider) dispute(ctx context.Context, w *store.Warm) error {
	if w.Name == "" {
		return nil
	}
	other, err := atoll.ResolveID(ctx, l.Provider, w.Project, w.Name)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = l.store.Find(ctx, other)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return taken(w.Name, other)
	}
	return err
}

func taken(name, id string) error {
	return atoll.Errorf("create", name, atoll.ErrAlreadyExists, "the name is that of sandbox %s", id)
}

// make has a sandbox made for spec alone. A name is not given twice: a claim that
// was written down before is seen here at the latest, and one that comes later
// sees what is made here.
func (l *Provider) make(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := l.nameFree(ctx, spec); err != nil {
		return nil, err
	}
	sb, err := l.Provider.Create(ctx, spec)
	if atoll.KindOf(err) == atoll.ErrExhausted && l.makeRoom(ctx) {
		sb, err = l.Provider.Create(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	undo := context.WithoutCancel(ctx)
	if isOurs(sb.ID()) { // its maker chose an id that one of ours had, perhaps
		err = l.forget(undo, sb.ID())
	}
	if err == nil {
		err = l.nameFree(undo, spec)
	}
	if err != nil {
		return nil, errors.Join(err, sb.Remove(undo, atoll.RemoveVolumes()))
	}
	return sb, nil
}

// nameFree is ErrAlreadyExists when a claim has the name that spec asks for.
func (l *Provider) nameFree(ctx context.Context, spec *atoll.Spec) error {
	if spec.Name == "" {
		return nil
	}
	w, err := l.store.WarmNamed(ctx, cmp.Or(spec.Project, atoll.DefaultProject), spec.Name)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return nil
	}
	if err != nil {
		return err
	}
	if w.Scope == l.scope {
		if gone, err := l.gone(ctx, w.ID); err == nil && gone {
			return l.forget(ctx, w.ID)
		}
	}
	return taken(spec.Name, w.ID)
}

// makeRoom removes one sandbox of the stock for somebody who finds no room, and
// has the pool rest for a while. It reports whether there was one.
func (l *Provider) makeRoom(ctx context.Context) bool {
	l.mu.Lock()
	var from *shelf
	for _, sh := range l.shelves {
		if len(sh.warm) > 0 && (from == nil || len(sh.warm) > len(from.warm)) {
			from = sh
		}
	}
	if from == nil {
		l.mu.Unlock()
		return false
	}
	it := from.warm[0]
	from.warm = slices.Delete(from.warm, 0, 1)
	for _, sh := range l.shelves {
		sh.until = time.Now().Add(roomRest)
	}
	l.mu.Unlock()
	return l.discard(ctx, from, it.sb.ID()) == nil
}

// roomRest is how long a pool makes nothing after somebody has found no room.
const roomRest = 10 * time.Second
