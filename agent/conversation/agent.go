package conversation

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/output"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Limits of the output of agents, in bytes.
const (
	maxLine        = 8 << 20  // the length at which a line is truncated
	maxAgentOutput = 16 << 20 // the recent output that the provider retains, for a program that takes the turn over
	maxStderr      = 8 << 10  // the end of stderr that an error contains
)

// setupTimeout limits the run of one setup command of a template.
const setupTimeout = 10 * time.Minute

// runSetup runs the template's setup commands in a new sandbox.
func (sb *sandbox) runSetup(ctx context.Context) error {
	for _, cmd := range sb.template.Setup() {
		var out bytes.Buffer
		cmd.Timeout, cmd.Stdout, cmd.Stderr = atoll.Duration(setupTimeout), &out, &out
		if err := atoll.Run(ctx, sb.instance, cmd); err != nil {
			return atoll.Errorf("set up", sb.record.ID, atoll.KindOf(err), "%s: %w: %s", strings.Join(cmd.Args, " "), err, outputTail(out.Bytes()))
		}
	}
	return nil
}

// outputTail returns the end of a command's output, as valid UTF-8.
func outputTail(out []byte) string {
	return strings.ToValidUTF8(string(bytes.TrimSpace(out[max(0, len(out)-maxStderr):])), "�")
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

// readOutput reads the agent's output until the agent has ended, sends its events to clients and
// saves its messages. It returns the summary of the turn, or the reason why the turn now belongs
// to another program.
func (t *turn) readOutput(sb *sandbox, p atoll.Process) (output.Summary, error) {
	parser, err := output.New(string(cmp.Or(t.template.Agent.Format, template.FormatText)))
	if err != nil { // cannot happen: the template is checked
		return output.Summary{}, err
	}
	r := &outputReader{turn: t, sandbox: sb, parser: parser, messages: make(chan printedMessage, 64)}
	saved := make(chan struct{})
	go func() {
		defer close(saved)
		for m := range r.messages {
			if left := t.stopCause(); left == nil || errors.Is(left, errCancelled) {
				t.saveMessage(sb, m.position, m.message)
			} // else the program that takes over saves them, and Close does not wait for their hooks
		}
	}()
	defer func() {
		close(r.messages)
		<-saved
	}()
	exit, err := r.followProcess(t.ctx, p)
	left := t.stopCause()
	if left != nil && !errors.Is(left, errCancelled) {
		return output.Summary{}, left
	}
	switch atoll.KindOf(err) {
	case "", atoll.ErrStopped, atoll.ErrNotFound, atoll.ErrNotExist:
	default: // the agent may still run, and nobody reads its output
		t.killAgent(p)
	}
	r.finishOutput(exit, err)
	return parser.Summary(), nil
}

// A printedMessage is a message from the agent's output.
type printedMessage struct {
	position string // in the output; see messageKey
	message  *agent.Message
}

// An outputReader parses the agent's output, line by line.
type outputReader struct {
	turn     *turn
	sandbox  *sandbox
	parser   output.Parser
	messages chan printedMessage

	line      []byte // the beginning of the current line
	truncated bool   // the line is too long, and its rest is dropped
	partial   bool   // the beginning of the line is lost
	offset    int64  // of stdout

	mu     sync.Mutex
	stderr []byte
}

// reconnectTimeout limits the attempts to reach a sandbox that is unavailable. An engine that
// restarts is back within it, and so is the agent.
const reconnectTimeout = 5 * time.Minute

// followProcess reads the output of the process to its end. It reconnects if the connection
// breaks.
func (r *outputReader) followProcess(ctx context.Context, p atoll.Process) (atoll.Exit, error) {
	errOffset := int64(0)
	reached := time.Now()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		from, begun := r.offset, time.Now()
		stderr := &countingWriter{w: (*stderrTail)(r)}
		err := p.Attach(ctx, &atoll.Attachment{
			Stdout: r, Stderr: stderr, StdoutFrom: from, StderrFrom: errOffset,
			Gap: func(s atoll.Stream, from, to int64) {
				if s == atoll.Stdout {
					r.recordGap(to - from)
					r.offset = to
				}
			},
		})
		errOffset += stderr.n
		var exit atoll.Exit
		if err == nil {
			exit, err = p.Wait(ctx)
		}
		if atoll.KindOf(err) != atoll.ErrUnavailable || ctx.Err() != nil {
			return exit, err
		}
		if r.offset > from || time.Since(begun) > 20*time.Second { // it was connected
			pause, reached = 50*time.Millisecond, time.Now()
		}
		if time.Since(reached) > reconnectTimeout {
			return atoll.Exit{}, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return atoll.Exit{}, ctx.Err()
		}
	}
}

// A countingWriter counts the bytes that it passes on.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// A stderrTail stores the end of stderr.
type stderrTail outputReader

func (l *stderrTail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stderr = append(l.stderr, b...)
	if over := len(l.stderr) - maxStderr; over > 0 {
		l.stderr = slices.Delete(l.stderr, 0, over)
	}
	return len(b), nil
}

// recordGap notes that the provider dropped output before the reader got it.
func (r *outputReader) recordGap(bytes int64) {
	r.line, r.truncated, r.partial = nil, false, true
	r.turn.service.log.Warn("conversation: lost output of an agent", "turn", r.turn.id, "bytes", bytes)
}

// Write parses the agent's stdout. It blocks while clients are too far behind, which slows the
// agent down.
func (r *outputReader) Write(b []byte) (n int, err error) {
	defer func() { // the provider may call it in a goroutine of its own
		if p := recover(); p != nil {
			r.turn.service.log.Error("panic in a turn", "turn", r.turn.id, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = atoll.Errorf("conversation", r.turn.conversation.ID, atoll.ErrInternal, "panic: %v", p)
		}
	}()
	at := r.offset
	r.offset += int64(len(b))
	n = len(b)
	for {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		at += int64(len(line)) + 1
		if room := maxLine - len(r.line); len(line) > room {
			line, r.truncated = line[:room], true
		}
		r.line = append(r.line, line...)
		if !whole {
			return n, nil
		}
		r.handleLine(at)
		b = rest
	}
}

// handleLine parses the current line, which ends at the offset at, and publishes its events and
// messages.
func (r *outputReader) handleLine(at int64) {
	if r.partial {
		r.line, r.truncated, r.partial = r.line[:0], false, false
		return
	}
	line := bytes.TrimSuffix(r.line, []byte{'\r'})
	if r.truncated {
		line = append(slices.Clone(line[:200]), "... (line too long, truncated)"...)
	}
	if r.turn.raw {
		r.turn.stream.addEvent(r.turn.ctx, bytes.Clone(line))
	}
	r.publishStep(r.parser.Line(line), at)
	r.line, r.truncated = r.line[:0], false
	if cap(r.line) > 1<<20 {
		r.line = nil
	}
}

// publishStep sends the events of a step, and queues its messages. The step's output ends at the
// offset at. A program that takes the turn over may not get the oldest output, but it sees the
// same offsets.
func (r *outputReader) publishStep(step output.Step, at int64) {
	if !r.turn.raw {
		for _, e := range step.Events {
			r.turn.stream.addEvent(r.turn.ctx, encodeEvent(e))
		}
	}
	for i := range step.Messages {
		r.messages <- printedMessage{fmt.Sprintf("%d.%d", at, i), &step.Messages[i]}
	}
}

// finishOutput publishes the end of the agent's output.
func (r *outputReader) finishOutput(exit atoll.Exit, err error) {
	if len(r.line) > 0 {
		r.handleLine(r.offset)
	}
	r.turn.mu.Lock()
	if r.turn.cancelled {
		err = context.Canceled
	}
	r.turn.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	end := r.parser.End(exit, outputTail(r.stderr), err)
	r.publishStep(end, r.offset+1)
	if r.turn.raw { // the agent prints no line for an error outside of it
		for _, e := range end.Events {
			if e.Type == output.Error {
				r.turn.stream.addEvent(r.turn.ctx, encodeEvent(e))
			}
		}
	}
}

// finishTurn runs the hook OnStreamFinish after the agent has ended, saves the history and ends
// the turn. If left is not nil, the turn belongs to another program, which does this instead.
func (t *turn) finishTurn(sb *sandbox, sum output.Summary, left error) {
	if left == nil {
		t.service.opts.onStep("finishing")
		sum.Usage = t.turnUsage(sum.Usage)
		data := sb.hookData()
		data.TokenUsage = &sum.Usage
		t.service.opts.Hooks.StreamFinish(context.WithoutCancel(t.ctx), sb.template.Hooks, data)
		t.saveHistory(sb, sum)
		t.service.opts.onStep("finished")
	}
	t.endTurn()
}

// turnUsage returns the tokens of this turn. Codex reports the sum over all turns of its thread,
// so turnUsage subtracts the tokens of earlier turns. If the sum is smaller than those, Codex
// has begun a new thread, and nothing is subtracted.
func (t *turn) turnUsage(u agent.TokenUsage) agent.TokenUsage {
	if t.template.Agent.Format != template.FormatCodex {
		return u
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), storeTimeout)
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

// resumeTurn finishes a turn that another program began, or an earlier run of this one. It reads
// the agent's output from its start, so the events and their ids are the same.
func (t *turn) resumeTurn() {
	defer t.settleStart(nil)
	sb, p, err := t.findAgent()
	for pause := 100 * time.Millisecond; err != nil && t.isTransient(err); pause = min(2*pause, 5*time.Second) {
		select {
		case <-time.After(pause):
		case <-t.ctx.Done():
		}
		sb, p, err = t.findAgent()
	}
	if stopped := t.stopCause(); stopped != nil && !errors.Is(stopped, errCancelled) {
		t.endTurn()
		return
	}
	if err != nil {
		t.service.log.Warn("conversation: cannot finish a turn of another program", "conversation", t.conversation.ID, "turn", t.id, "err", err)
		t.sendStart()
		t.sendFailure("the server ended during the turn: " + err.Error())
		if t.created = t.conversation.Sandbox == ""; t.created || sb == nil || sb.instance == nil { // the turn never had a sandbox
			t.endTurn()
			return
		}
		t.restorePrompt(sb)
		t.finishTurn(sb, output.Summary{}, nil)
		return
	}
	t.sendStart()
	t.restorePrompt(sb)
	t.mu.Lock()
	t.process = p
	t.mu.Unlock()
	sum, left := t.readOutput(sb, p)
	t.finishTurn(sb, sum, left)
}

// isTransient reports whether findAgent should try again after err, because the agent may still
// run.
func (t *turn) isTransient(err error) bool {
	kind := atoll.KindOf(err)
	return (kind == atoll.ErrUnavailable || kind == atoll.ErrTimeout) && t.ctx.Err() == nil && time.Since(t.startedHere) < reconnectTimeout
}

// restorePrompt adds the prompt of a resumed turn to its history.
func (t *turn) restorePrompt(sb *sandbox) {
	if m := t.findPrompt(); m != nil {
		t.addToHistory(sb, m)
	}
}

// findPrompt returns the prompt of a resumed turn, nil if its first program did not save it.
func (t *turn) findPrompt() *agent.Message {
	for page := (store.Page{Limit: 10}); ; {
		some, err := t.service.store.Messages(t.ctx, t.conversation.Account, t.conversation.ID, page)
		if err != nil {
			t.service.log.Warn("conversation: cannot add the prompt of a turn to its history", "conversation", t.conversation.ID, "turn", t.id, "err", err)
		}
		for _, m := range some {
			if m.Key == messageKey(t.id, promptPosition) {
				return m
			}
		}
		if len(some) == 0 || some[0].Turn != t.id {
			return nil
		}
		page.After = some[0].Key
	}
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
	s.mu.Lock()
	t := s.turns[accountKey(c.Account, c.ID)]
	s.mu.Unlock()
	if t == nil || t.id != c.Turn.ID {
		return atoll.Errorf("cancel", id, atoll.ErrConflict, "the turn is starting: try again")
	}
	t.mu.Lock()
	first := !t.cancelled
	t.cancelled = true
	p := t.process
	t.mu.Unlock()
	switch {
	case first && p == nil:
		t.cancel(errCancelled) // stop the creation of the sandbox
	case first:
		s.goroutines.Go(func() { t.stopAgent(p) }) // Close may wait: the turn is not done
	}
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stopAgent sends the agent the stop signals, one after the other, until the turn ends.
func (t *turn) stopAgent(p atoll.Process) {
	for _, sig := range stopSignals {
		if err := p.Signal(t.ctx, sig); err != nil && atoll.KindOf(err) != atoll.ErrStopped {
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
