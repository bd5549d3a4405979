package conversation

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// startAgent saves the prompt, and starts the agent in the sandbox.
func (t *turn) startAgent() error {
	t.saveMessage(promptPosition, &agent.Message{Role: agent.RoleUser, Body: t.prompt})
	cmd, err := t.sandbox.agentCommand(t.ctx, t.prompt, t.number > 1)
	if err != nil {
		return err
	}
	t.service.opts.onStep("starting")
	p, err := t.sandbox.instance.Exec(t.ctx, cmd)
	if err != nil {
		return err
	}
	t.service.opts.onStep("started")
	t.process = p
	if state, _ := t.changeState(agentStarted); state.isCancelled() {
		t.killAgent()
		return errCancelled
	}
	err = t.lease.updateRecord(t.ctx, func(c *store.Conversation) { c.Turn.Process = p.ID() })
	if err != nil && t.stopCause() == nil { // else another program finds the process, and finishes the turn
		t.killAgent()
	}
	return err
}

// agentCommand returns the agent's command for a prompt. If again is set, the agent continues
// its last session, provided that the sandbox has one.
func (sb *sandbox) agentCommand(ctx context.Context, prompt string, again bool) (*atoll.Command, error) {
	if p := sb.template.ContinuePath(); p != "" && again {
		_, err := atoll.Files(sb.instance).Stat(ctx, p)
		if again = err == nil; err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
			return nil, err
		}
	}
	cmd, err := sb.template.Turn(prompt, again)
	if err == nil {
		cmd.OutputLimit = maxAgentOutput
	}
	return cmd, err
}

// findAgent finds the sandbox and the agent process of a turn that another program left.
func (t *turn) findAgent() (*sandbox, atoll.Process, error) {
	tpl, err := t.service.opts.Templates.Get(t.conversation.Template, t.conversation.Agent)
	if err != nil {
		return nil, nil, err
	}
	t.template = tpl
	record, err := t.service.store.FindSandbox(t.ctx, t.conversation.Account, t.conversation.Turn.Sandbox)
	if err != nil {
		return nil, nil, err
	}
	sb, err := t.service.openSandbox(t.ctx, tpl, &t.conversation, record)
	if err != nil {
		return nil, nil, err
	}
	sb.turn = t.number
	p, err := t.findProcess(sb)
	return sb, p, err
}

// findProcess finds the agent's process. It also finds one that was started just before its
// program died, and is not in the record.
func (t *turn) findProcess(sb *sandbox) (p atoll.Process, err error) {
	if sb.record.External == "" {
		return nil, errNotStarted
	}
	if sb.instance, err = sb.service.provider.Get(t.ctx, sb.record.External); err != nil {
		return nil, err
	}
	if id := t.conversation.Turn.Process; id != "" {
		return sb.instance.Process(t.ctx, id)
	}
	all, err := atoll.Processes(t.ctx, sb.instance)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if p.Started.After(t.conversation.Turn.Started) && len(p.Args) > 0 && p.Args[0] == t.template.Agent.Command[0] {
			return sb.instance.Process(t.ctx, p.ID)
		}
	}
	return nil, errNotStarted
}

// errNotStarted is the error of findProcess if the agent was never started.
var errNotStarted = errors.New("the agent was not started")

// stopSignals are the signals for the agent of a cancelled turn, in this order.
var stopSignals = []atoll.Signal{atoll.SIGINT, atoll.SIGTERM, atoll.SIGKILL}

// signalInterval is the time between two stop signals.
const signalInterval = 3 * time.Second

// killAgent kills an agent that this program does not wait for.
func (t *turn) killAgent() {
	ctx, cancel := withStoreTimeout(t.ctx)
	defer cancel()
	if err := t.process.Signal(ctx, atoll.SIGKILL); err != nil && atoll.KindOf(err) != atoll.ErrStopped {
		t.service.log.Warn("conversation: cannot kill an agent", "conversation", t.conversation.ID, "turn", t.id, "err", err)
	}
}

// stopAgent sends the agent the stop signals, one after the other, until the turn ends.
func (t *turn) stopAgent() {
	for _, sig := range stopSignals {
		if err := t.process.Signal(t.ctx, sig); err != nil && atoll.KindOf(err) != atoll.ErrStopped {
			t.service.log.Warn("conversation: cannot signal an agent", "turn", t.id, "signal", sig, "err", err)
		}
		select {
		case <-t.done:
			return
		case <-time.After(signalInterval):
		case <-t.ctx.Done():
			return
		}
	}
}
