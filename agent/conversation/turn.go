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

// A turn is one that this program runs, or has run.
type turn struct {
	v            *Service
	id           string
	conversation agent.Conversation // as it was when the turn began
	turns        int64              // how many there were, with this one
	made         bool               // the conversation with it
	prompt       string
	template     *template.Template
	stream       *stream
	raw          bool      // the stream has the agent's own lines
	began        time.Time // here

	ctx    context.Context // ends with the turn, or when it is no longer ours
	cancel context.CancelCauseFunc

	ready  chan struct{} // closed when the agent runs, or will not
	failed error         // why it will not; for who waits for ready
	once   sync.Once     // of these two
	done   chan struct{} // closed at the end
	hidden chan struct{} // closed when another one is shown in its place

	mu        sync.Mutex
	record    *store.Conversation // as it is written down
	process   atoll.Process       // nil before it is known
	cancelled bool
}

// errCancelled is why a turn ends that a client has cancelled.
var errCancelled = errors.New("the turn was cancelled")

// readiness is how long the answer to a prompt waits for its sandbox, so that what goes
// wrong until then is the answer. After it the events begin, and tell it.
const readiness = 15 * time.Second

// maxPrompt is how long a prompt may be, in bytes.
const maxPrompt = 1 << 20

// Send begins a turn: it gives a prompt to the agent of a conversation, which is made
// if it is not there, and so is its sandbox. It returns the events of the turn, which
// end when all that belongs to it is done, files being pushed included. The turn goes on
// whether they are read or not, and when ctx has ended.
//
// Kinds: ErrInvalid; ErrConflict (a turn runs, or conversation and sandbox are linked
// otherwise); ErrNotExist (the sandbox is another account's); those of making a sandbox
// and of the hook OnColdStart, after which a conversation and a sandbox that were not
// there before are not there again.
func (v *Service) Send(ctx context.Context, p agent.Prompt) (iter.Seq2[agent.TurnEvent, error], error) {
	c, err := v.asked(ctx, &p)
	if err != nil {
		return nil, err
	}
	tpl, err := v.opts.Templates.Get(c.Template, c.Agent)
	if err != nil {
		return nil, err
	}
	if err := tpl.Agent.CheckPrompt(p.Text); err != nil {
		return nil, err
	}
	t, err := v.claim(ctx, c, agent.Turn{Sandbox: p.Sandbox, Raw: p.Raw}, func(t *turn) {
		t.prompt, t.template = p.Text, tpl
		t.run()
	})
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(readiness)
	defer timer.Stop()
	select {
	case <-t.ready:
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := t.refused(); err != nil {
		return nil, err
	}
	return t.stream.follow(ctx, 0), nil
}

// Follow returns the events of the turn that runs, or of the last one if that ended a
// short while ago: those after the one with the id after, or all. It returns nil where
// there is none. Kinds: ErrNotExist (no such conversation, or the turn of that event is
// over and its events are gone), ErrInvalid, ErrUnavailable (another server runs the
// turn).
func (v *Service) Follow(ctx context.Context, id, after string) (iter.Seq2[agent.TurnEvent, error], error) {
	c, err := v.find(ctx, id)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	t := v.turns[key(c.Account, c.ID)]
	v.mu.Unlock()
	if c.Turn != nil && (t == nil || t.id != c.Turn.ID) {
		return nil, atoll.Errorf("stream", id, atoll.ErrUnavailable, "server %s runs turn %s: ask there, or again in a while", c.Turn.Server, c.Turn.ID)
	}
	if t == nil {
		return nil, nil
	}
	n, err := t.stream.position(after)
	if err != nil {
		return nil, err
	}
	return t.stream.follow(ctx, n), nil
}

// refused is why the agent could not be started, nil if it was or may yet be.
func (t *turn) refused() error {
	select {
	case <-t.ready:
		return t.failed
	default:
		return nil
	}
}

// asked checks a prompt, and returns the conversation that it is for: one without Rev
// is to be made.
func (v *Service) asked(ctx context.Context, p *agent.Prompt) (*store.Conversation, error) {
	const op = "send"
	bad := func(format string, args ...any) error {
		return atoll.Errorf(op, p.Conversation, atoll.ErrInvalid, format, args...)
	}
	id, err := agent.ConversationID(p.Conversation)
	if err != nil {
		return nil, err
	}
	if p.Sandbox, err = sandboxRef(p.Sandbox); err != nil {
		return nil, err
	}
	switch {
	case strings.TrimSpace(p.Text) == "":
		return nil, bad("the prompt is missing")
	case len(p.Text) > maxPrompt:
		return nil, bad("the prompt has %d bytes, more than %d: put what it is about into a file", len(p.Text), maxPrompt)
	}
	if p.Agent, err = agentRef(op, id, p.Agent); err != nil {
		return nil, err
	}
	account := auth.AccountFrom(ctx).Name
	c, err := v.store.FindConversation(ctx, account, id)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		x, err := v.store.FindSandbox(ctx, account, p.Sandbox)
		switch {
		case err == nil: // one that was made before may say it
			p.Template, p.Agent = cmp.Or(p.Template, x.Template), cmp.Or(p.Agent, x.Agent)
		case atoll.KindOf(err) != atoll.ErrNotExist:
			return nil, err
		}
		now := time.Now()
		return &store.Conversation{Conversation: agent.Conversation{
			ID: id, Account: account, Organization: p.Organization, Agent: p.Agent, Template: v.templateName(p.Template), Created: now, Updated: now,
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	switch {
	case p.Template != "" && v.templateName(p.Template) != c.Template:
		return nil, atoll.Errorf(op, id, atoll.ErrConflict, "its provider is %s, not %s: begin another conversation for that", c.Template, p.Template)
	case p.Agent != "" && p.Agent != c.Agent:
		return nil, atoll.Errorf(op, id, atoll.ErrConflict, "it is with agent %q, not with %q: begin another conversation for that", c.Agent, p.Agent)
	case c.Sandbox != "" && c.Sandbox != p.Sandbox:
		return nil, atoll.Errorf(op, id, atoll.ErrConflict, "its sandbox is %s, not %s", c.Sandbox, p.Sandbox)
	}
	return c, nil
}

// agentRef is the id of an agent in the form in which it is kept; "" is none.
func agentRef(op, id, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	plain, err := agent.ConversationID(name) // they have the form of those
	if err != nil {
		return "", atoll.Errorf(op, id, atoll.ErrInvalid, "agent_id %q: use a UUID, or a letter or digit and then up to 64 letters, digits, '-' or '_'", name)
	}
	return plain, nil
}

// sandboxRef is the id of a sandbox in the form in which it is kept, or its name.
func sandboxRef(ref string) (string, error) {
	if id, err := atoll.NormalizeID(ref); err == nil && id != "" {
		return id, nil
	}
	if !atoll.ValidName(ref) {
		return "", atoll.Errorf("sandbox", ref, atoll.ErrInvalid, "%q names no sandbox: use a UUID, or a letter or digit and then up to 64 letters, digits, '-' or '_'", ref)
	}
	return ref, nil
}

// stopped reports whether the turn is not ours any more, and why.
func (t *turn) stopped() error {
	if t.ctx.Err() == nil {
		return nil
	}
	return context.Cause(t.ctx)
}

// run is the turn.
func (t *turn) run() {
	t.begin()
	box, err := t.v.ensure(t.ctx, t)
	if err == nil {
		if err = t.start(box); err != nil && t.gone() {
			box.undo()
		}
	}
	if err != nil {
		t.refuse(err)
		return
	}
	t.settle(nil)
	sum, left := t.listen(box, t.process)
	t.finish(box, sum, left)
}

// gone reports whether the conversation will not be there after a turn that could not
// begin, and so is not to have a sandbox.
func (t *turn) gone() bool {
	stopped := t.stopped()
	return t.made && t.process == nil && (stopped == nil || errors.Is(stopped, errCancelled))
}

// An event is one for clients that is not from the agent; output.Event has the others.
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

// begin sends the first event.
func (t *turn) begin() {
	t.tell(event{
		Type: "stream-start", Conversation: t.conversation.ID, Sandbox: t.conversation.Turn.Sandbox, Turn: t.id, Warnings: []string{},
	})
}

// broken sends the last events of a turn that has no agent. Clients that get the agent's
// own lines get the error, too: else they would not know of it.
func (t *turn) broken(text string) {
	t.stream.add(t.ctx, encode(event{Type: "error", Error: text}))
	t.tell(event{Type: "finish", FinishReason: "error", Usage: &usage{}})
}

// tell sends an event, unless clients get the agent's own lines.
func (t *turn) tell(e event) {
	if !t.raw {
		t.stream.add(t.ctx, encode(e))
	}
}

// encode is an event as JSON in one line, which people can read.
func encode(e any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		panic(err) // they are ours
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'})
}

// refuse ends a turn whose agent was not started.
func (t *turn) refuse(err error) {
	if stopped := t.stopped(); stopped != nil {
		err = stopped
	}
	if errors.Is(err, errCancelled) {
		err = atoll.Errorf("send", t.conversation.ID, atoll.ErrConflict, "%w", err)
	}
	t.v.log.Warn("conversation: a turn could not begin", "conversation", t.conversation.ID, "account", t.conversation.Account, "turn", t.id, "err", err)
	t.broken(err.Error())
	t.end()
	t.settle(err)
}

// start runs the agent.
func (t *turn) start(box *box) error {
	t.say(box, atPrompt, &agent.Message{Role: agent.RoleUser, Body: t.prompt})
	cmd, err := box.command(t.ctx, t.prompt, t.turns > 1)
	if err != nil {
		return err
	}
	t.v.opts.step("starting")
	p, err := box.sandbox.Exec(t.ctx, cmd)
	if err != nil {
		return err
	}
	t.v.opts.step("started")
	t.mu.Lock()
	t.process = p
	cancelled := t.cancelled
	t.mu.Unlock()
	if cancelled {
		t.put(p)
		return errCancelled
	}
	err = t.update(func(c *store.Conversation) { c.Turn.Process = p.ID() })
	if err != nil && t.stopped() == nil { // else another program finds it, and finishes the turn
		t.put(p)
	}
	return err
}

// put kills a process that nobody is to wait for.
func (t *turn) put(p atoll.Process) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), writing)
	defer cancel()
	if err := p.Signal(ctx, atoll.SIGKILL); err != nil && atoll.KindOf(err) != atoll.ErrStopped {
		t.v.log.Warn("conversation: an agent could not be ended", "conversation", t.conversation.ID, "turn", t.id, "err", err)
	}
}

// say has a message of this turn saved, by the hook for that. Its key follows from the
// turn and from where it is in what the agent has printed, so that a turn which is
// finished by another program says nothing twice.
func (t *turn) say(box *box, at string, m *agent.Message) {
	m.Key, m.Conversation, m.Account, m.Turn = messageKey(t.id, at), t.conversation.ID, t.conversation.Account, t.id
	m.Time = time.Now()
	t.keep(box, m)
	data := box.data()
	data.Message = m
	t.v.opts.Hooks.Message(context.WithoutCancel(t.ctx), box.template.Hooks, data)
}
