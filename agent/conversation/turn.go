package conversation

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/output"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/internal/retry"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A turn is a turn that this program runs, or ran last.
type turn struct {
	service         *Service
	id              string
	conversation    agent.Conversation // as of the start of the turn
	newConversation bool               // whether the conversation has no other turns, and is deleted if this one does not start
	number          int64              // of the turn in its conversation, from 1
	prompt          string
	template        *template.Template
	raw             bool      // whether the stream has the agent's own lines
	startedHere     time.Time // when this program began or resumed it

	lease   *lease
	stream  *stream
	sandbox *sandbox // nil until it is ready
	history *history // nil until the sandbox is ready

	ctx    context.Context // ends with the turn, or when another program owns it
	cancel context.CancelCauseFunc

	ready      chan struct{} // closed when the agent runs, or failed to start
	startErr   error         // why it failed to start; read it after ready
	settleOnce sync.Once     // sets startErr and closes ready
	done       chan struct{} // closed at the end of the turn
	replaced   chan struct{} // closed when another turn takes its place in Service.turns

	process atoll.Process // the agent; set before the change agentStarted

	mu    sync.Mutex
	state turnState
}

// errCancelled is the cause of the end of a turn that a client cancelled.
var errCancelled = errors.New("the turn was cancelled")

// eventsTTL is the time for which the events of a turn can be read after its end.
const eventsTTL = 5 * time.Minute

// startTurn calls run with the turn of c in a goroutine, and renews its lease meanwhile. The
// turn has the permissions of the caller in ctx.
func (s *Service) startTurn(ctx context.Context, c *store.Conversation, newConversation bool, run func(*turn)) (*turn, error) {
	t := &turn{
		service: s, id: c.Turn.ID, raw: c.Turn.Raw, conversation: c.Conversation, number: c.Turns, newConversation: newConversation, startedHere: time.Now(),
		stream: newStream(c.Turn.ID), ready: make(chan struct{}), done: make(chan struct{}), replaced: make(chan struct{}),
	}
	caller := auth.WithOrigin(auth.WithAccount(s.ctx, auth.AccountFrom(ctx)), auth.OriginFrom(ctx))
	t.ctx, t.cancel = context.WithCancelCause(caller)
	t.lease = s.newLease(c, func() { t.cancel(errLost) })
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.setShownTurn(accountKey(c.Account, c.ID), t)
		s.goroutines.Go(func() { t.lease.renewUntil(t.ctx, t.done) })
		s.goroutines.Go(func() {
			t.callRecovered(run)
			t.changeState(workDone)
			close(t.done)
			t.cancel(nil) // release the resources of t.ctx
			s.setOwned(t.id, false)
			t.expireEvents()
		})
	}
	s.mu.Unlock()
	if closed {
		t.lease.expireNow(t.ctx)
		return nil, errClosing
	}
	return t, nil
}

// setShownTurn sets the turn whose events clients of a conversation read; nil means none. The
// caller holds mu.
func (s *Service) setShownTurn(key string, t *turn) {
	if previous := s.turns[key]; previous != nil {
		close(previous.replaced)
	}
	if t == nil {
		delete(s.turns, key)
	} else {
		s.turns[key] = t
	}
}

// hideTurn removes the turn whose events clients of a conversation read.
func (s *Service) hideTurn(c *agent.Conversation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setShownTurn(accountKey(c.Account, c.ID), nil)
}

// shownTurn returns the turn whose events clients of a conversation read, nil if there is none.
func (s *Service) shownTurn(c *agent.Conversation) *turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turns[accountKey(c.Account, c.ID)]
}

// callRecovered calls run. A panic in it ends only this turn and its agent.
func (t *turn) callRecovered(run func(*turn)) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		t.service.log.Error("panic in a turn", "conversation", t.conversation.ID, "turn", t.id, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		if t.currentState().hasAgent() {
			t.killAgent()
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

// startError returns the reason why the agent was not started, nil if it was started or may
// still be.
func (t *turn) startError() error {
	select {
	case <-t.ready:
		return t.startErr
	default:
		return nil
	}
}

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

// runTurn runs the whole turn: it starts the sandbox and the agent, reads its output and ends
// the turn.
func (t *turn) runTurn() {
	t.sendStart()
	sb, err := t.ensureSandbox()
	if err == nil {
		t.setSandbox(sb)
		if err = t.startAgent(); err != nil && t.isDiscarded() {
			sb.undo()
		}
	}
	if err != nil {
		t.failStart(err)
		return
	}
	t.settleStart(nil)
	t.followAgent()
}

// setSandbox sets the sandbox in which the agent runs.
func (t *turn) setSandbox(sb *sandbox) {
	t.sandbox, t.history = sb, t.newHistory(sb)
}

// followAgent reads the agent's output to its end, and ends the turn.
func (t *turn) followAgent() {
	summary, err := t.readOutput()
	if err != nil { // another program finishes the turn
		t.endTurn()
		return
	}
	t.finishTurn(summary)
}

// finishTurn runs the hook OnStreamFinish after the agent has ended, saves the history and ends
// the turn.
func (t *turn) finishTurn(summary output.Summary) {
	t.service.opts.onStep("finishing")
	summary.Usage = t.turnUsage(summary.Usage)
	data := t.sandbox.hookData()
	data.TokenUsage = &summary.Usage
	t.service.opts.Hooks.StreamFinish(context.WithoutCancel(t.ctx), t.sandbox.template.Hooks, data)
	t.history.writeMessages(t.ctx, summary.Usage)
	t.service.opts.onStep("finished")
	t.endTurn()
}

// turnUsage returns the tokens of this turn. Codex reports the sum over all turns of its thread,
// so turnUsage subtracts the tokens of earlier turns. If the sum is smaller than those, Codex
// has begun a new thread, and nothing is subtracted.
func (t *turn) turnUsage(u agent.TokenUsage) agent.TokenUsage {
	if t.template.Agent.Format != template.FormatCodex {
		return u
	}
	ctx, cancel := withStoreTimeout(t.ctx)
	defer cancel()
	c, err := t.service.store.FindConversation(ctx, t.conversation.Account, t.conversation.ID)
	if err != nil {
		return u
	}
	s := c.Stats
	if u.Input < s.InputTokens || u.Output < s.OutputTokens || u.Cache < s.CacheTokens {
		return u
	}
	return agent.TokenUsage{Input: u.Input - s.InputTokens, Output: u.Output - s.OutputTokens, Cache: u.Cache - s.CacheTokens}
}

// failStart ends a turn whose agent was not started.
func (t *turn) failStart(err error) {
	if stopped := t.stopCause(); stopped != nil {
		err = stopped
	}
	if errors.Is(err, errCancelled) {
		err = atoll.Errorf("send", t.conversation.ID, atoll.ErrConflict, "%w", err)
	}
	t.service.log.Warn("conversation: turn failed to start", "conversation", t.conversation.ID, "account", t.conversation.Account, "turn", t.id, "err", err)
	t.sendFailure(err.Error())
	t.endTurn()
	t.settleStart(err)
}

// resumeTurn finishes a turn that another program began, or an earlier run of this one. It reads
// the agent's output from its start, so the events and their ids are the same.
func (t *turn) resumeTurn() {
	defer t.settleStart(nil)
	var sb *sandbox
	var p atoll.Process
	policy := retry.Policy{First: 100 * time.Millisecond, Max: 5 * time.Second, If: t.isTransient}
	err := policy.Do(t.ctx, func() (err error) { sb, p, err = t.findAgent(); return err })
	if t.leaveCause() != nil {
		t.endTurn()
		return
	}
	t.sendStart()
	if err != nil {
		t.service.log.Warn("conversation: cannot finish a turn of another program", "conversation", t.conversation.ID, "turn", t.id, "err", err)
		t.sendFailure("the server ended during the turn: " + err.Error())
		t.newConversation = t.conversation.Sandbox == ""
		if t.newConversation || sb == nil || sb.instance == nil { // the turn never had a sandbox
			t.endTurn()
			return
		}
		t.setSandbox(sb)
		t.restorePrompt()
		t.finishTurn(output.Summary{})
		return
	}
	t.setSandbox(sb)
	t.restorePrompt()
	t.process = p
	t.changeState(agentStarted)
	t.followAgent()
}

// isTransient reports whether findAgent should try again after err, because the agent may still
// run.
func (t *turn) isTransient(err error) bool {
	kind := atoll.KindOf(err)
	return (kind == atoll.ErrUnavailable || kind == atoll.ErrTimeout) && t.ctx.Err() == nil && time.Since(t.startedHere) < reconnectTimeout
}

// saveMessage saves a message of this turn with the hook OnMessage. The message's key derives
// from the turn and from its position in the agent's output, so a program that takes the turn
// over saves no message twice.
func (t *turn) saveMessage(position string, m *agent.Message) {
	m.Key, m.Conversation, m.Account, m.Turn = messageKey(t.id, position), t.conversation.ID, t.conversation.Account, t.id
	m.Time = time.Now()
	t.history.addMessage(t.ctx, m)
	data := t.sandbox.hookData()
	data.Message = m
	t.service.opts.Hooks.Message(context.WithoutCancel(t.ctx), t.sandbox.template.Hooks, data)
}

// stopCause returns the reason why the turn's context ended, nil if it has not.
func (t *turn) stopCause() error {
	if t.ctx.Err() == nil {
		return nil
	}
	return context.Cause(t.ctx)
}

// leaveCause returns the reason why another program has to finish the turn, nil if this one does.
func (t *turn) leaveCause() error {
	cause := t.stopCause()
	if errors.Is(cause, errCancelled) {
		return nil
	}
	return cause
}

// isDiscarded reports whether the end of the turn deletes its conversation, since its first turn
// failed to start. Then its sandbox is removed too.
func (t *turn) isDiscarded() bool {
	return t.newConversation && !t.currentState().hasAgent() && t.leaveCause() == nil
}

// endTurn releases the conversation for the next turn, and ends the stream. If another program
// has to finish the turn, it releases the turn instead.
func (t *turn) endTurn() {
	if cause := t.leaveCause(); cause != nil {
		t.lease.expireNow(t.ctx)
		t.stream.endStream(cause)
		return
	}
	var err error
	if t.isDiscarded() {
		err = t.deleteConversation()
		t.unlinkSandbox()
	} else {
		err = t.lease.endTurn(t.ctx)
	}
	if err != nil { // the conversation is busy until the lease expires
		t.service.log.Error("conversation: cannot record the end of a turn", "conversation", t.conversation.ID, "turn", t.id, "err", err)
	}
	t.stream.endStream(nil)
}

// deleteConversation deletes the turn's conversation.
func (t *turn) deleteConversation() error {
	t.service.hideTurn(&t.conversation)
	return t.lease.deleteConversation(t.ctx)
}

// unlinkSandbox unlinks the sandbox that a deleted conversation asked for.
func (t *turn) unlinkSandbox() {
	ctx, cancel := withStoreTimeout(t.ctx)
	defer cancel()
	if err := t.service.unlinkSandbox(ctx, &t.conversation, t.conversation.Turn.Sandbox); err != nil {
		t.service.log.Warn("conversation: cannot unlink the sandbox of a turn that failed to start", "conversation", t.conversation.ID, "sandbox", t.conversation.Turn.Sandbox, "err", err)
	}
}
