package conversation

import (
	"cmp"
	"context"
	"iter"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

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
		t.runTurn()
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
	t := s.shownTurn(&c.Conversation)
	if c.Turn != nil && (t == nil || t.id != c.Turn.ID) {
		return nil, atoll.Errorf("stream", id, atoll.ErrUnavailable, "server %s runs turn %s: send the request there, or try again later", c.Turn.Server, c.Turn.ID)
	}
	if t == nil {
		return nil, nil
	}
	n, err := t.stream.parseEventID(after)
	if err != nil || t.stream.endsAt(n) {
		return nil, err
	}
	return t.stream.readEvents(ctx, n), nil
}

// Cancel ends the running turn, and returns when it has ended. It interrupts the agent, and
// kills it if it does not exit. The messages and files until then are saved. Kinds:
// ErrNotExist (no such conversation), ErrStopped (no turn runs), ErrUnavailable (another server
// runs the turn).
func (s *Service) Cancel(ctx context.Context, id string) error {
	c, err := s.findConversation(ctx, id)
	switch {
	case err != nil:
		return err
	case c.Turn == nil:
		return atoll.Errorf("cancel", id, atoll.ErrStopped, "no turn runs")
	case !s.ownsTurn(c.Turn.ID):
		return atoll.Errorf("cancel", id, atoll.ErrUnavailable, "server %s runs the turn: send the request there", c.Turn.Server)
	}
	t := s.shownTurn(&c.Conversation)
	if t == nil || t.id != c.Turn.ID {
		return atoll.Errorf("cancel", id, atoll.ErrConflict, "the turn is starting: try again")
	}
	switch state, ok := t.changeState(cancelRequested); {
	case ok && state == turnAborting:
		t.cancel(errCancelled) // stop the creation of the sandbox
	case ok && state == turnStopping:
		s.goroutines.Go(t.stopAgent) // Close waits for the turn anyway
	}
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
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
