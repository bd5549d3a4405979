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

// errLost is the cause of the end of a turn that another server has taken over.
var errLost = atoll.Errorf("conversation", "", atoll.ErrUnavailable, "this server could not renew the lease of the turn in time, and another server took it over: read GET .../stream there")

// claimTurn claims a new turn of c for this server, and calls run with it in a goroutine. want
// has the options of the turn. The turn belongs to this server until endTurn. Kinds:
// ErrConflict.
func (s *Service) claimTurn(ctx context.Context, c *store.Conversation, want agent.Turn, run func(*turn)) (*turn, error) {
	now := time.Now()
	made := c.Rev == 0
	if c.Turn != nil {
		return nil, busyError("send", c)
	}
	want.ID, want.Server, want.Started = atoll.NewID(), s.opts.Server, now
	c.Turn = &want
	c.Caller, c.Until, c.Turns = auth.AccountFrom(ctx).Who(), now.Add(s.opts.testLease), c.Turns+1
	s.setOwned(c.Turn.ID, true) // before watchTurns can find it
	var err error
	if made {
		err = s.store.InsertConversation(ctx, c)
	} else {
		err = s.store.UpdateConversation(ctx, c)
	}
	if err == nil {
		return s.startTurn(ctx, c, made, run)
	}
	s.setOwned(c.Turn.ID, false)
	if atoll.KindOf(err) == atoll.ErrAlreadyExists || errors.Is(err, store.ErrChanged) {
		return nil, s.conflictError(ctx, c)
	}
	return nil, err
}

// setOwned records whether this program runs a turn.
func (s *Service) setOwned(turn string, runs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if runs {
		s.owned[turn] = true
	} else {
		delete(s.owned, turn)
	}
}

// ownsTurn reports whether this program runs a turn.
func (s *Service) ownsTurn(turn string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owned[turn]
}

// conflictError returns the error of a claim that lost a race with another request.
func (s *Service) conflictError(ctx context.Context, c *store.Conversation) error {
	now, err := s.store.FindConversation(ctx, c.Account, c.ID)
	switch {
	case err != nil && atoll.KindOf(err) != atoll.ErrNotExist: // else it was deleted meanwhile
		return err
	case err == nil && now.Turn != nil:
		return busyError("send", now)
	}
	return atoll.Errorf("send", c.ID, atoll.ErrConflict, "another request changed it: try again")
}

// startTurn calls run with the turn of c in a goroutine, and renews its lease meanwhile. The
// turn has the permissions of the caller in ctx.
func (s *Service) startTurn(ctx context.Context, c *store.Conversation, made bool, run func(*turn)) (*turn, error) {
	t := &turn{
		service: s, id: c.Turn.ID, raw: c.Turn.Raw, conversation: c.Conversation, number: c.Turns, created: made, record: c, startedHere: time.Now(),
		stream: newStream(c.Turn.ID), ready: make(chan struct{}), done: make(chan struct{}), replaced: make(chan struct{}),
	}
	caller := auth.WithOrigin(auth.WithAccount(s.ctx, auth.AccountFrom(ctx)), auth.OriginFrom(ctx))
	t.ctx, t.cancel = context.WithCancelCause(caller)
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.setShownTurn(accountKey(c.Account, c.ID), t)
		s.goroutines.Go(t.renewLease)
		s.goroutines.Go(func() {
			t.callRecovered(run)
			close(t.done)
			t.cancel(nil) // release the resources of t.ctx
			s.setOwned(t.id, false)
			t.expireEvents()
		})
	}
	s.mu.Unlock()
	if closed {
		t.releaseTurn()
		return nil, errClosing
	}
	return t, nil
}

// setShownTurn sets the turn whose events clients of a conversation read; nil means none. The
// caller holds mu.
func (s *Service) setShownTurn(of string, t *turn) {
	if was := s.turns[of]; was != nil {
		close(was.replaced)
	}
	if t == nil {
		delete(s.turns, of)
	} else {
		s.turns[of] = t
	}
}

// callRecovered calls run. A panic in it ends only this turn and its agent.
func (t *turn) callRecovered(run func(*turn)) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		t.service.log.Error("panic in a turn", "conversation", t.conversation.ID, "turn", t.id, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		if t.process != nil {
			t.killAgent(t.process)
		}
		t.sendFailure("internal error: see the log of the server")
		t.settleStart(atoll.Errorf("conversation", t.conversation.ID, atoll.ErrInternal, "panic: %v", p))
		t.endTurn()
	}()
	run(t)
}

// settleStart reports the result of the start to Send: nil if the agent runs. Only the first
// call counts.
func (t *turn) settleStart(err error) {
	t.settleOnce.Do(func() {
		t.startErr = err
		close(t.ready)
	})
}

// eventsTTL is the time for which the events of a turn can be read after its end.
const eventsTTL = 5 * time.Minute

// expireEvents waits until the turn's events expire, and removes them. It returns early if
// another turn replaces this one, or if the service closes.
func (t *turn) expireEvents() {
	timer := time.NewTimer(eventsTTL)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.replaced: // nobody can read its events any more
	case <-t.service.ctx.Done():
	}
	t.service.mu.Lock()
	defer t.service.mu.Unlock()
	if k := accountKey(t.conversation.Account, t.conversation.ID); t.service.turns[k] == t {
		delete(t.service.turns, k)
	}
}

// renewLease renews the lease until the turn ends. A turn that is cancelled, or whose server is
// closing, still needs its lease until its last work is done.
func (t *turn) renewLease() {
	tick := time.NewTicker(t.service.opts.testLease / 3)
	defer tick.Stop()
	for {
		select {
		case <-t.done:
			return
		case <-tick.C:
		}
		err := t.updateRecord(func(*store.Conversation) {})
		if errors.Is(err, errLost) {
			return
		}
		if err != nil {
			t.service.log.Warn("conversation: cannot renew the lease of a turn", "conversation", t.conversation.ID, "turn", t.id, "err", err)
		}
	}
}

// storeTimeout limits a write to the store that must not be lost when its context ends.
const storeTimeout = 20 * time.Second

// updateRecord changes the turn's record in the store, and renews the lease. If the turn no
// longer belongs to this server, it cancels the turn with errLost, and returns that.
func (t *turn) updateRecord(change func(*store.Conversation)) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), storeTimeout)
	defer cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		c := *t.record
		if c.Turn == nil { // the turn has ended
			return nil
		}
		turn := *c.Turn
		c.Turn, c.Until = &turn, time.Now().Add(t.service.opts.testLease)
		change(&c)
		err := t.service.store.UpdateConversation(ctx, &c)
		if err == nil {
			t.record = &c
			return nil
		}
		if !errors.Is(err, store.ErrChanged) {
			return err
		}
		now, err := t.service.store.FindConversation(ctx, c.Account, c.ID)
		switch {
		case atoll.KindOf(err) == atoll.ErrNotExist, err == nil && (now.Turn == nil || now.Turn.ID != t.id || now.Turn.Server != t.service.opts.Server):
			t.cancel(errLost)
			return errLost
		case err != nil:
			return err
		}
		t.record = now // another part of the record has changed: try again
	}
}

// endTurn releases the conversation for the next turn, and ends the stream. If the conversation
// is new and its agent was never started, it deletes the conversation.
func (t *turn) endTurn() {
	if stopped := t.stopCause(); stopped != nil && !errors.Is(stopped, errCancelled) {
		t.releaseTurn()
		t.stream.endStream(stopped)
		return
	}
	var err error
	if t.created && t.process == nil {
		err = t.deleteConversation()
		t.unlinkSandbox()
	} else {
		err = t.updateRecord(func(c *store.Conversation) { c.Turn, c.Until = nil, time.Time{} })
	}
	if err != nil { // the conversation is busy until the lease expires
		t.service.log.Error("conversation: cannot record the end of a turn", "conversation", t.conversation.ID, "turn", t.id, "err", err)
	}
	t.stream.endStream(nil)
}

// deleteConversation deletes the turn's conversation.
func (t *turn) deleteConversation() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), storeTimeout)
	defer cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.service.mu.Lock()
	t.service.setShownTurn(accountKey(t.conversation.Account, t.conversation.ID), nil)
	t.service.mu.Unlock()
	err := t.service.store.DeleteConversation(ctx, t.record)
	if err == nil {
		t.closeRecord()
	}
	return err
}

// unlinkSandbox unlinks the sandbox that a deleted conversation asked for.
func (t *turn) unlinkSandbox() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), storeTimeout)
	defer cancel()
	if err := t.service.unlinkSandbox(ctx, &t.conversation, t.conversation.Turn.Sandbox); err != nil {
		t.service.log.Warn("conversation: cannot unlink the sandbox of a turn that failed to start", "conversation", t.conversation.ID, "sandbox", t.conversation.Turn.Sandbox, "err", err)
	}
}

// closeRecord makes updateRecord write nothing from now on. The caller holds mu.
func (t *turn) closeRecord() {
	c := *t.record
	c.Turn = nil
	t.record = &c
}

// releaseTurn lets the lease expire now, so that another program finishes the turn.
func (t *turn) releaseTurn() {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	c := *t.record
	c.Until = time.Now()
	if err := t.service.store.UpdateConversation(ctx, &c); err != nil && !errors.Is(err, store.ErrChanged) {
		t.service.log.Warn("conversation: cannot release a turn, other servers take it over when its lease expires", "conversation", c.ID, "turn", t.id, "err", err)
	}
	t.closeRecord()
}

// watchTurns finishes the turns of programs that have died. It takes over turns of this server's
// name at once, and turns of other servers when their leases have expired.
func (s *Service) watchTurns() {
	tick := time.NewTicker(s.opts.testLease / 3)
	defer tick.Stop()
	for first := true; ; first = false {
		s.takeOverTurns(first)
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// takeOverTurns finishes the turns that no program runs.
func (s *Service) takeOverTurns(first bool) {
	all, err := s.store.RunningTurns(s.ctx)
	if err != nil {
		if s.ctx.Err() == nil {
			s.log.Warn("conversation: cannot look for turns to take over", "err", err)
		}
		return
	}
	for _, c := range all {
		ours := first && c.Turn.Server == s.opts.Server
		if s.ownsTurn(c.Turn.ID) || !ours && time.Now().Before(c.Until) {
			continue
		}
		s.log.Info("conversation: finishing a turn of another program", "conversation", c.ID, "turn", c.Turn.ID, "server", c.Turn.Server)
		c.Turn.Server, c.Until = s.opts.Server, time.Now().Add(s.opts.testLease)
		if err := s.store.UpdateConversation(s.ctx, c); err != nil {
			if !errors.Is(err, store.ErrChanged) && s.ctx.Err() == nil { // else another server takes it over
				s.log.Warn("conversation: cannot finish a turn of another program", "conversation", c.ID, "turn", c.Turn.ID, "err", err)
			}
			continue
		}
		s.setOwned(c.Turn.ID, true)
		ctx := auth.WithAccount(s.ctx, callerOf(c))
		_, _ = s.startTurn(ctx, c, false, (*turn).resumeTurn) // it fails only if the service is closing
	}
}

// callerOf returns the account for which the turn of c runs. A turn of an older program has only
// its name.
func callerOf(c *store.Conversation) auth.Account {
	a, err := auth.ParseAccount(c.Caller)
	if err != nil || a.Name != c.Account {
		return auth.Account{Name: c.Account}
	}
	return a
}
