package conversation

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// errLost is why a turn ends here that another program has taken over.
var errLost = atoll.Errorf("conversation", "", atoll.ErrUnavailable, "this server could not say in time that it runs the turn, and another one has taken it over: GET .../stream there shows it")

// claim begins a turn of c, of which want has what is special, and has run do it. It is
// ours until end is called. Kinds: ErrConflict.
func (v *Service) claim(ctx context.Context, c *store.Conversation, want agent.Turn, run func(*turn)) (*turn, error) {
	now := time.Now()
	made := c.Rev == 0
	if c.Turn != nil {
		return nil, busy("send", c)
	}
	want.ID, want.Server, want.Started = atoll.NewID(), v.opts.Server, now
	c.Turn = &want
	c.Caller, c.Until, c.Turns = auth.AccountFrom(ctx).Who(), now.Add(v.opts.lease), c.Turns+1
	v.own(c.Turn.ID, true) // before anybody can find it and think that it was left
	var err error
	if made {
		err = v.store.InsertConversation(ctx, c)
	} else {
		err = v.store.UpdateConversation(ctx, c)
	}
	if err == nil {
		return v.adopt(ctx, c, made, run)
	}
	v.own(c.Turn.ID, false)
	if atoll.KindOf(err) == atoll.ErrAlreadyExists || errors.Is(err, store.ErrChanged) {
		return nil, v.beaten(ctx, c)
	}
	return nil, err
}

// own notes whether this program runs a turn.
func (v *Service) own(turn string, runs bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if runs {
		v.ours[turn] = true
	} else {
		delete(v.ours, turn)
	}
}

// owns reports whether this program runs a turn.
func (v *Service) owns(turn string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ours[turn]
}

// beaten is the error of who was not the first.
func (v *Service) beaten(ctx context.Context, c *store.Conversation) error {
	now, err := v.store.FindConversation(ctx, c.Account, c.ID)
	switch {
	case err != nil && atoll.KindOf(err) != atoll.ErrNotExist: // else it was deleted
		return err
	case err == nil && now.Turn != nil:
		return busy("send", now)
	}
	return atoll.Errorf("send", c.ID, atoll.ErrConflict, "another request has changed it meanwhile: try again")
}

// adopt has run do the turn of c, which is ours. It may do what the caller may, whom
// ctx is of.
func (v *Service) adopt(ctx context.Context, c *store.Conversation, made bool, run func(*turn)) (*turn, error) {
	t := &turn{
		v: v, id: c.Turn.ID, raw: c.Turn.Raw, conversation: c.Conversation, turns: c.Turns, made: made, record: c, began: time.Now(),
		stream: newStream(c.Turn.ID), ready: make(chan struct{}), done: make(chan struct{}), hidden: make(chan struct{}),
	}
	caller := auth.WithOrigin(auth.WithAccount(v.ctx, auth.AccountFrom(ctx)), auth.OriginFrom(ctx))
	t.ctx, t.cancel = context.WithCancelCause(caller)
	v.mu.Lock()
	closed := v.closed
	if !closed {
		v.show(key(c.Account, c.ID), t)
		v.work.Go(t.hold)
		v.work.Go(func() {
			t.contain(run)
			close(t.done)
			t.cancel(nil) // v.ctx forgets it
			v.own(t.id, false)
			t.linger()
		})
	}
	v.mu.Unlock()
	if closed {
		t.leave()
		return nil, errClosing
	}
	return t, nil
}

// show has t be the turn of a conversation whose events can be read; nil is none. The
// caller holds mu.
func (v *Service) show(of string, t *turn) {
	if was := v.turns[of]; was != nil {
		close(was.hidden)
	}
	if t == nil {
		delete(v.turns, of)
	} else {
		v.turns[of] = t
	}
}

// contain calls run. A panic in it ends the turn, and its agent, and nothing else.
func (t *turn) contain(run func(*turn)) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		t.v.log.Error("panic in a turn", "conversation", t.conversation.ID, "turn", t.id, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		if t.process != nil {
			t.put(t.process)
		}
		t.broken("a fault of the server: its log says more")
		t.settle(atoll.Errorf("conversation", t.conversation.ID, atoll.ErrInternal, "panic: %v", p))
		t.end()
	}()
	run(t)
}

// settle tells who waits for it whether the agent runs: err is why not.
func (t *turn) settle(err error) {
	t.once.Do(func() {
		t.failed = err
		close(t.ready)
	})
}

// lingering is how long the events of a turn can be read after its end.
const lingering = 5 * time.Minute

// linger forgets the turn after a while, or when the service closes.
func (t *turn) linger() {
	timer := time.NewTimer(lingering)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.hidden: // its events, which may be many, are for nobody any more
	case <-t.v.ctx.Done():
	}
	t.v.mu.Lock()
	defer t.v.mu.Unlock()
	if k := key(t.conversation.Account, t.conversation.ID); t.v.turns[k] == t {
		delete(t.v.turns, k)
	}
}

// hold says from time to time that the turn is ours, until it ends: one that is cancelled,
// or that the server does not wait for, has not ended before what it began is done.
func (t *turn) hold() {
	tick := time.NewTicker(t.v.opts.lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-t.done:
			return
		case <-tick.C:
		}
		err := t.update(func(*store.Conversation) {})
		if errors.Is(err, errLost) {
			return
		}
		if err != nil {
			t.v.log.Warn("conversation: cannot say that a turn runs", "conversation", t.conversation.ID, "turn", t.id, "err", err)
		}
	}
}

// writing is how long a change of what is written down may take.
const writing = 20 * time.Second

// update changes what is written down of the turn, which is ours. If it is not any more,
// it ends here, with errLost.
func (t *turn) update(change func(*store.Conversation)) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), writing)
	defer cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		c := *t.record
		if c.Turn == nil { // it has ended
			return nil
		}
		turn := *c.Turn
		c.Turn, c.Until = &turn, time.Now().Add(t.v.opts.lease)
		change(&c)
		err := t.v.store.UpdateConversation(ctx, &c)
		if err == nil {
			t.record = &c
			return nil
		}
		if !errors.Is(err, store.ErrChanged) {
			return err
		}
		now, err := t.v.store.FindConversation(ctx, c.Account, c.ID)
		switch {
		case atoll.KindOf(err) == atoll.ErrNotExist, err == nil && (now.Turn == nil || now.Turn.ID != t.id || now.Turn.Server != t.v.opts.Server):
			t.cancel(errLost)
			return errLost
		case err != nil:
			return err
		}
		t.record = now // somebody has changed something else
	}
}

// end frees the conversation for the next turn, and ends the stream. One that was made
// for a turn that could not begin is not there again.
func (t *turn) end() {
	if stopped := t.stopped(); stopped != nil && !errors.Is(stopped, errCancelled) {
		t.leave()
		t.stream.end(stopped)
		return
	}
	var err error
	if t.made && t.process == nil {
		err = t.forget()
		t.free()
	} else {
		err = t.update(func(c *store.Conversation) { c.Turn, c.Until = nil, time.Time{} })
	}
	if err != nil { // until the lease ends
		t.v.log.Error("conversation: the end of a turn could not be written down", "conversation", t.conversation.ID, "turn", t.id, "err", err)
	}
	t.stream.end(nil)
}

// forget deletes the conversation.
func (t *turn) forget() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), writing)
	defer cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.v.mu.Lock()
	t.v.show(key(t.conversation.Account, t.conversation.ID), nil)
	t.v.mu.Unlock()
	err := t.v.store.DeleteConversation(ctx, t.record)
	if err == nil {
		t.release()
	}
	return err
}

// free frees the sandbox that the conversation was to have.
func (t *turn) free() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), writing)
	defer cancel()
	if err := t.v.unlink(ctx, &t.conversation, t.conversation.Turn.Sandbox); err != nil {
		t.v.log.Warn("conversation: a sandbox is still linked with what could not begin", "conversation", t.conversation.ID, "sandbox", t.conversation.Turn.Sandbox, "err", err)
	}
}

// release has update write nothing any more. The caller holds mu.
func (t *turn) release() {
	c := *t.record
	c.Turn = nil
	t.record = &c
}

// leave has another program finish the turn, at once.
func (t *turn) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), writing)
	defer cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	c := *t.record
	c.Until = time.Now()
	if err := t.v.store.UpdateConversation(ctx, &c); err != nil && !errors.Is(err, store.ErrChanged) {
		t.v.log.Warn("conversation: a turn is left to others, who will wait until it may be taken over", "conversation", c.ID, "turn", t.id, "err", err)
	}
	t.release()
}

// care finishes the turns of programs that have died: those of one with our name at
// once, those of others when they have not been heard of for the length of a lease.
func (v *Service) care() {
	tick := time.NewTicker(v.opts.lease / 3)
	defer tick.Stop()
	for first := true; ; first = false {
		v.takeOver(first)
		select {
		case <-v.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// takeOver finishes the turns that nobody else does.
func (v *Service) takeOver(first bool) {
	all, err := v.store.RunningTurns(v.ctx)
	if err != nil {
		if v.ctx.Err() == nil {
			v.log.Warn("conversation: cannot look for turns that were left", "err", err)
		}
		return
	}
	for _, c := range all {
		ours := first && c.Turn.Server == v.opts.Server
		if v.owns(c.Turn.ID) || !ours && time.Now().Before(c.Until) {
			continue
		}
		v.log.Info("conversation: finishing a turn that was left", "conversation", c.ID, "turn", c.Turn.ID, "server", c.Turn.Server)
		c.Turn.Server, c.Until = v.opts.Server, time.Now().Add(v.opts.lease)
		if err := v.store.UpdateConversation(v.ctx, c); err != nil {
			if !errors.Is(err, store.ErrChanged) && v.ctx.Err() == nil { // else another one does it
				v.log.Warn("conversation: a turn that was left cannot be finished", "conversation", c.ID, "turn", c.Turn.ID, "err", err)
			}
			continue
		}
		v.own(c.Turn.ID, true)
		ctx := auth.WithAccount(v.ctx, callerOf(c))
		_, _ = v.adopt(ctx, c, false, (*turn).resume) // it fails when we are closing, and leaves it
	}
}

// callerOf is for whom the turn of c runs. Of one that an older program has begun no more
// is known than the name.
func callerOf(c *store.Conversation) auth.Account {
	a, err := auth.ParseAccount(c.Caller)
	if err != nil || a.Name != c.Account {
		return auth.Account{Name: c.Account}
	}
	return a
}
