package conversation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/output"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A turn is a turn that this program runs, or ran last.
type turn struct {
	service      *Service
	id           string
	conversation agent.Conversation // as of the start of the turn
	number       int64              // of the turn in its conversation, from 1
	created      bool               // whether the turn created the conversation
	prompt       string
	template     *template.Template
	stream       *stream
	raw          bool      // whether the stream has the agent's own lines
	startedHere  time.Time // when this program began or resumed it

	ctx    context.Context // ends with the turn, or when another program owns it
	cancel context.CancelCauseFunc

	ready      chan struct{} // closed when the agent runs, or failed to start
	startErr   error         // why it failed to start; read it after ready
	settleOnce sync.Once     // sets startErr and closes ready
	done       chan struct{} // closed at the end of the turn
	replaced   chan struct{} // closed when another turn takes its place in Service.turns

	mu        sync.Mutex
	record    *store.Conversation // the last one that was read or written
	process   atoll.Process       // the agent; nil before its start
	cancelled bool
}

// errCancelled is the cause of the end of a turn that a client cancelled.
var errCancelled = errors.New("the turn was cancelled")

// startWait limits the time for which Send waits for the agent to start. An error within it is
// the error of Send; a later one is an event.
const startWait = 15 * time.Second

// maxPrompt limits the size of a prompt, in bytes.
const maxPrompt = 1 << 20

// Send begins a turn: it gives a prompt to the agent of a conversation. It creates the
// conversation and its sandbox if they do not exist. It returns the events of the turn, which
// end after the last work of the turn, such as the push of files. The turn continues if nobody
// reads its events, and if ctx ends.
//
// Kinds: ErrInvalid; ErrConflict (a turn runs, or the conversation or the sandbox is linked
// otherwise); ErrNotExist (the sandbox belongs to another account); those of creating a sandbox
// and of the hook OnColdStart. After an error, the conversation and the sandbox do not exist if
// they did not exist before.
func (s *Service) Send(ctx context.Context, p agent.Prompt) (iter.Seq2[agent.TurnEvent, error], error) {
	c, err := s.checkPrompt(ctx, &p)
	if err != nil {
		return nil, err
	}
	tpl, err := s.opts.Templates.Get(c.Template, c.Agent)
	if err != nil {
		return nil, err
	}
	if err := tpl.Agent.CheckPrompt(p.Text); err != nil {
		return nil, err
	}
	t, err := s.claimTurn(ctx, c, agent.Turn{Sandbox: p.Sandbox, Raw: p.Raw}, func(t *turn) {
		t.prompt, t.template = p.Text, tpl
		t.runAgent()
	})
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(startWait)
	defer timer.Stop()
	select {
	case <-t.ready:
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := t.startError(); err != nil {
		return nil, err
	}
	return t.stream.readEvents(ctx, 0), nil
}

// Follow returns the events of the running turn, or of the last one if it ended a short while
// ago: those after the event with the id after, or all. It returns nil if there is no such turn.
// Kinds: ErrNotExist (no such conversation, or the turn or the event has expired), ErrInvalid,
// ErrUnavailable (another server runs the turn).
func (s *Service) Follow(ctx context.Context, id, after string) (iter.Seq2[agent.TurnEvent, error], error) {
	c, err := s.findConversation(ctx, id)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	t := s.turns[accountKey(c.Account, c.ID)]
	s.mu.Unlock()
	if c.Turn != nil && (t == nil || t.id != c.Turn.ID) {
		return nil, atoll.Errorf("stream", id, atoll.ErrUnavailable, "server %s runs turn %s: send the request there, or try again later", c.Turn.Server, c.Turn.ID)
	}
	if t == nil {
		return nil, nil
	}
	n, err := t.stream.parseEventID(after)
	if err != nil {
		return nil, err
	}
	return t.stream.readEvents(ctx, n), nil
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

// checkPrompt checks and normalizes a prompt, and returns its conversation. A conversation
// without Rev does not exist yet.
func (s *Service) checkPrompt(ctx context.Context, p *agent.Prompt) (*store.Conversation, error) {
	const op = "send"
	bad := func(format string, args ...any) error {
		return atoll.Errorf(op, p.Conversation, atoll.ErrInvalid, format, args...)
	}
	id, err := agent.ConversationID(p.Conversation)
	if err != nil {
		return nil, err
	}
	if p.Sandbox, err = normalizeSandbox(p.Sandbox); err != nil {
		return nil, err
	}
	switch {
	case strings.TrimSpace(p.Text) == "":
		return nil, bad("the prompt is missing")
	case len(p.Text) > maxPrompt:
		return nil, bad("the prompt has %d bytes, more than %d: put long text into a file of the sandbox", len(p.Text), maxPrompt)
	}
	if p.Agent, err = normalizeAgent(op, id, p.Agent); err != nil {
		return nil, err
	}
	account := auth.AccountFrom(ctx).Name
	c, err := s.store.FindConversation(ctx, account, id)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		record, err := s.store.FindSandbox(ctx, account, p.Sandbox)
		switch {
		case err == nil: // an existing sandbox has a template and an agent
			p.Template, p.Agent = cmp.Or(p.Template, record.Template), cmp.Or(p.Agent, record.Agent)
		case atoll.KindOf(err) != atoll.ErrNotExist:
			return nil, err
		}
		now := time.Now()
		return &store.Conversation{Conversation: agent.Conversation{
			ID: id, Account: account, Organization: p.Organization, Agent: p.Agent, Template: s.templateName(p.Template), Created: now, Updated: now,
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	switch {
	case p.Template != "" && s.templateName(p.Template) != c.Template:
		return nil, atoll.Errorf(op, id, atoll.ErrConflict, "its provider is %s, not %s: start another conversation", c.Template, p.Template)
	case p.Agent != "" && p.Agent != c.Agent:
		return nil, atoll.Errorf(op, id, atoll.ErrConflict, "its agent is %q, not %q: start another conversation", c.Agent, p.Agent)
	case c.Sandbox != "" && c.Sandbox != p.Sandbox:
		return nil, atoll.Errorf(op, id, atoll.ErrConflict, "its sandbox is %s, not %s", c.Sandbox, p.Sandbox)
	}
	return c, nil
}

// normalizeAgent returns the canonical form of an agent id; "" means no agent.
func normalizeAgent(op, id, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	plain, err := agent.ConversationID(name) // ids of agents have the same form
	if err != nil {
		return "", atoll.Errorf(op, id, atoll.ErrInvalid, "agent_id %q: use a UUID, or a letter or digit and then up to 64 letters, digits, '-' or '_'", name)
	}
	return plain, nil
}

// normalizeSandbox returns the canonical form of a sandbox's id, or its name.
func normalizeSandbox(ref string) (string, error) {
	if id, err := atoll.NormalizeID(ref); err == nil && id != "" {
		return id, nil
	}
	if !atoll.ValidName(ref) {
		return "", atoll.Errorf("sandbox", ref, atoll.ErrInvalid, "invalid sandbox %q: use a UUID, or a letter or digit and then up to 64 letters, digits, '-' or '_'", ref)
	}
	return ref, nil
}

// stopCause returns the reason why the turn's context ended, nil if it has not.
func (t *turn) stopCause() error {
	if t.ctx.Err() == nil {
		return nil
	}
	return context.Cause(t.ctx)
}

// runAgent runs the whole turn: it starts the sandbox and the agent, reads its output and ends
// the turn.
func (t *turn) runAgent() {
	t.sendStart()
	sb, err := t.service.ensureSandbox(t.ctx, t)
	if err == nil {
		if err = t.startAgent(sb); err != nil && t.isDiscarded() {
			sb.undo()
		}
	}
	if err != nil {
		t.failStart(err)
		return
	}
	t.settleStart(nil)
	sum, left := t.readOutput(sb, t.process)
	t.finishTurn(sb, sum, left)
}

// isDiscarded reports whether the turn's conversation is about to be deleted, since its first
// turn failed to start. Then its sandbox is removed too.
func (t *turn) isDiscarded() bool {
	stopped := t.stopCause()
	return t.created && t.process == nil && (stopped == nil || errors.Is(stopped, errCancelled))
}

// An event is an event from this package; those from the agent's output are output.Event.
type event struct {
	Type         string   `json:"type"`
	Conversation string   `json:"conversationId,omitempty"`
	Sandbox      string   `json:"sandboxId,omitempty"`
	Turn         string   `json:"turnId,omitempty"`
	Warnings     []string `json:"warnings,omitzero"`
	Error        string   `json:"error,omitempty"`
	FinishReason string   `json:"finishReason,omitempty"`
	Usage        *usage   `json:"usage,omitempty"`
}

type usage = output.Usage

// sendStart sends the first event.
func (t *turn) sendStart() {
	t.sendEvent(event{
		Type: "stream-start", Conversation: t.conversation.ID, Sandbox: t.conversation.Turn.Sandbox, Turn: t.id, Warnings: []string{},
	})
}

// sendFailure sends the last events of a turn without an agent. Clients of raw streams get the
// error too: they have no other sign of it.
func (t *turn) sendFailure(text string) {
	t.stream.addEvent(t.ctx, encodeEvent(event{Type: "error", Error: text}))
	t.sendEvent(event{Type: "finish", FinishReason: "error", Usage: &usage{}})
}

// sendEvent sends an event, unless the stream has only the agent's raw lines.
func (t *turn) sendEvent(e event) {
	if !t.raw {
		t.stream.addEvent(t.ctx, encodeEvent(e))
	}
}

// encodeEvent encodes an event as one line of JSON, without escapes for HTML.
func encodeEvent(e any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		panic(err) // all events can be encoded
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'})
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

// startAgent saves the prompt, and starts the agent in the sandbox.
func (t *turn) startAgent(sb *sandbox) error {
	t.saveMessage(sb, promptPosition, &agent.Message{Role: agent.RoleUser, Body: t.prompt})
	cmd, err := sb.agentCommand(t.ctx, t.prompt, t.number > 1)
	if err != nil {
		return err
	}
	t.service.opts.onStep("starting")
	p, err := sb.instance.Exec(t.ctx, cmd)
	if err != nil {
		return err
	}
	t.service.opts.onStep("started")
	t.mu.Lock()
	t.process = p
	cancelled := t.cancelled
	t.mu.Unlock()
	if cancelled {
		t.killAgent(p)
		return errCancelled
	}
	err = t.updateRecord(func(c *store.Conversation) { c.Turn.Process = p.ID() })
	if err != nil && t.stopCause() == nil { // else another program finds the process, and finishes the turn
		t.killAgent(p)
	}
	return err
}

// killAgent kills the process of an agent that this program does not wait for.
func (t *turn) killAgent(p atoll.Process) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), storeTimeout)
	defer cancel()
	if err := p.Signal(ctx, atoll.SIGKILL); err != nil && atoll.KindOf(err) != atoll.ErrStopped {
		t.service.log.Warn("conversation: cannot kill an agent", "conversation", t.conversation.ID, "turn", t.id, "err", err)
	}
}

// saveMessage saves a message of this turn with the hook OnMessage. The message's key derives
// from the turn and from its position in the agent's output, so a program that takes the turn
// over saves no message twice.
func (t *turn) saveMessage(sb *sandbox, at string, m *agent.Message) {
	m.Key, m.Conversation, m.Account, m.Turn = messageKey(t.id, at), t.conversation.ID, t.conversation.Account, t.id
	m.Time = time.Now()
	t.addToHistory(sb, m)
	data := sb.hookData()
	data.Message = m
	t.service.opts.Hooks.Message(context.WithoutCancel(t.ctx), sb.template.Hooks, data)
}
