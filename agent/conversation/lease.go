package conversation

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// errLost is the cause of the end of a turn that another server has taken over.
var errLost = atoll.Errorf("conversation", "", atoll.ErrUnavailable, "this server could not renew the lease of the turn in time, and another server took it over: read GET .../stream there")

// storeTimeout limits a write to the store that must not be lost when its context ends.
const storeTimeout = 20 * time.Second

// withStoreTimeout returns a context for such a write.
func withStoreTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
}

// A lease is the claim of this server to the running turn of a conversation. The store has it,
// as the conversation's Turn and Until. The server renews it until the turn ends. If it expires,
// another server may take the turn over. Its methods are safe for concurrent use.
type lease struct {
	store        store.Conversations
	log          *slog.Logger
	server       string        // Options.Server
	duration     time.Duration // from one renewal to the expiry
	conversation string        // its id
	turn         string        // its id
	lose         func()        // called when another server has taken the turn over

	mu     sync.Mutex
	record *store.Conversation // the last one that was read or written; without Turn once the lease has ended
}

// newLease returns the lease of the turn of c, which the store has already.
func (s *Service) newLease(c *store.Conversation, lose func()) *lease {
	return &lease{store: s.store, log: s.log, server: s.opts.Server, duration: s.leaseTime, conversation: c.ID, turn: c.Turn.ID, lose: lose, record: c}
}

// updateRecord changes the conversation's record in the store, and renews the lease. It does
// nothing if the lease has ended. If the turn no longer belongs to this server, it calls lose and
// returns errLost.
func (l *lease) updateRecord(ctx context.Context, change func(*store.Conversation)) error {
	ctx, cancel := withStoreTimeout(ctx)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		c := *l.record
		if c.Turn == nil { // the lease has ended
			return nil
		}
		turn := *c.Turn
		c.Turn, c.Until = &turn, time.Now().Add(l.duration)
		change(&c)
		err := l.store.UpdateConversation(ctx, &c)
		if err == nil {
			l.record = &c
			return nil
		}
		if !errors.Is(err, store.ErrChanged) {
			return err
		}
		now, err := l.store.FindConversation(ctx, c.Account, c.ID)
		switch {
		case atoll.KindOf(err) == atoll.ErrNotExist, err == nil && (now.Turn == nil || now.Turn.ID != l.turn || now.Turn.Server != l.server):
			l.lose()
			return errLost
		case err != nil:
			return err
		}
		l.record = now // another part of the record has changed: try again
	}
}

// renewUntil renews the lease until done is closed. A turn that is cancelled, or whose server is
// closing, still needs its lease until its last work is done.
func (l *lease) renewUntil(ctx context.Context, done <-chan struct{}) {
	tick := time.NewTicker(l.duration / 3)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		err := l.updateRecord(ctx, func(*store.Conversation) {})
		if errors.Is(err, errLost) {
			return
		}
		if err != nil {
			l.log.Warn("conversation: cannot renew the lease of a turn", "conversation", l.conversation, "turn", l.turn, "err", err)
		}
	}
}

// endTurn ends the turn in the store, and with it the lease.
func (l *lease) endTurn(ctx context.Context) error {
	return l.updateRecord(ctx, func(c *store.Conversation) { c.Turn, c.Until = nil, time.Time{} })
}

// deleteConversation deletes the conversation, and with it the lease.
func (l *lease) deleteConversation(ctx context.Context) error {
	ctx, cancel := withStoreTimeout(ctx)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.store.DeleteConversation(ctx, l.record)
	if err == nil {
		l.closeRecord()
	}
	return err
}

// expireNow lets another program take the turn over at once.
func (l *lease) expireNow(ctx context.Context) {
	ctx, cancel := withStoreTimeout(ctx)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	c := *l.record
	c.Until = time.Now()
	if err := l.store.UpdateConversation(ctx, &c); err != nil && !errors.Is(err, store.ErrChanged) {
		l.log.Warn("conversation: cannot release a turn, other servers take it over when its lease expires", "conversation", l.conversation, "turn", l.turn, "err", err)
	}
	l.closeRecord()
}

// closeRecord makes updateRecord write nothing from now on. The caller holds mu.
func (l *lease) closeRecord() {
	c := *l.record
	c.Turn = nil
	l.record = &c
}

// claimTurn claims a new turn of c for this server, and calls run with it in a goroutine. want
// has the options of the turn. The turn belongs to this server until its end. Kinds:
// ErrConflict.
func (s *Service) claimTurn(ctx context.Context, c *store.Conversation, want agent.Turn, run func(*turn)) (*turn, error) {
	now := time.Now()
	isNew := c.Rev == 0
	if c.Turn != nil {
		return nil, busyError("send", c)
	}
	want.ID, want.Server, want.Started = atoll.NewID(), s.opts.Server, now
	c.Turn = &want
	c.Caller, c.Until, c.Turns = auth.AccountFrom(ctx).Identity(), now.Add(s.leaseTime), c.Turns+1
	s.setOwned(c.Turn.ID, true) // before watchTurns can find it
	var err error
	if isNew {
		err = s.store.InsertConversation(ctx, c)
	} else {
		err = s.store.UpdateConversation(ctx, c)
	}
	if err == nil {
		return s.startTurn(ctx, c, isNew, run)
	}
	s.setOwned(c.Turn.ID, false)
	if atoll.KindOf(err) == atoll.ErrAlreadyExists || errors.Is(err, store.ErrChanged) {
		return nil, s.conflictError(ctx, c)
	}
	return nil, err
}

// withConversation calls do in a turn without events, so that no other turn can begin. If ctx
// ends, withConversation returns, but do continues to its end.
func (s *Service) withConversation(ctx context.Context, c *store.Conversation, sandboxID string, do func(context.Context, *turn) error) error {
	var failed error
	t, err := s.claimTurn(ctx, c, agent.Turn{Sandbox: sandboxID}, func(t *turn) {
		failed = do(context.WithoutCancel(ctx), t)
		s.hideTurn(&t.conversation)
		t.settleStart(nil)
		t.endTurn()
	})
	if err != nil {
		return err
	}
	select {
	case <-t.done:
		return cmp.Or(failed, t.startError())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// setOwned records whether this program runs a turn.
func (s *Service) setOwned(turn string, owned bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if owned {
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

// busyError returns the error of a request for a conversation while a turn runs.
func busyError(op string, c *store.Conversation) error {
	return atoll.Errorf(op, c.ID, atoll.ErrConflict, "turn %s runs since %s on server %s: wait until it ends, follow it with GET /conversation/%s/stream, or cancel it",
		c.Turn.ID, c.Turn.Started.UTC().Format(time.RFC3339), c.Turn.Server, c.ID)
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

// watchTurns finishes the turns of programs that have died. It takes over turns of this server's
// name at once, and turns of other servers when their leases have expired.
func (s *Service) watchTurns() {
	tick := time.NewTicker(s.leaseTime / 3)
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

// takeOverTurns finishes the turns that no program runs. On the first call these include all
// turns of this server's name.
func (s *Service) takeOverTurns(first bool) {
	all, err := s.store.RunningTurns(s.ctx)
	if err != nil {
		if s.ctx.Err() == nil {
			s.log.Warn("conversation: cannot look for turns to take over", "err", err)
		}
		return
	}
	for _, c := range all {
		abandoned := first && c.Turn.Server == s.opts.Server || !time.Now().Before(c.Until)
		if s.ownsTurn(c.Turn.ID) || !abandoned {
			continue
		}
		s.log.Info("conversation: finishing a turn of another program", "conversation", c.ID, "turn", c.Turn.ID, "server", c.Turn.Server)
		c.Turn.Server, c.Until = s.opts.Server, time.Now().Add(s.leaseTime)
		if err := s.store.UpdateConversation(s.ctx, c); err != nil {
			if !errors.Is(err, store.ErrChanged) && s.ctx.Err() == nil { // else another server takes it over
				s.log.Warn("conversation: cannot take over a turn", "conversation", c.ID, "turn", c.Turn.ID, "err", err)
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
