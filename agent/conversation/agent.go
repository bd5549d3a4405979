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

// The bounds of what agents print.
const (
	maxLine     = 8 << 20  // a longer line is cut
	agentOutput = 16 << 20 // is kept of it, for a program that takes over
	maxStderr   = 8 << 10  // the end of it, which says why an agent failed
)

// setupTime is how long one command of a template's setup may take.
const setupTime = 10 * time.Minute

// prepare runs the template's commands in a sandbox that was made.
func (b *box) prepare(ctx context.Context) error {
	for _, cmd := range b.template.Setup() {
		var out bytes.Buffer
		cmd.Timeout, cmd.Stdout, cmd.Stderr = atoll.Duration(setupTime), &out, &out
		if err := atoll.Run(ctx, b.sandbox, cmd); err != nil {
			return atoll.Errorf("set up", b.record.ID, atoll.KindOf(err), "%s: %w: %s", strings.Join(cmd.Args, " "), err, tail(out.Bytes()))
		}
	}
	return nil
}

// tail is the end of what a command printed.
func tail(out []byte) string {
	return strings.ToValidUTF8(string(bytes.TrimSpace(out[max(0, len(out)-maxStderr):])), "�")
}

// command is the agent's, for a prompt.
func (b *box) command(ctx context.Context, prompt string, again bool) (*atoll.Command, error) {
	if p := b.template.ContinuePath(); p != "" && again {
		_, err := atoll.Files(b.sandbox).Stat(ctx, p)
		if again = err == nil; err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
			return nil, err
		}
	}
	cmd, err := b.template.Turn(prompt, again)
	if err == nil {
		cmd.OutputLimit = agentOutput
	}
	return cmd, err
}

// listen reads what the agent prints until it has ended, and sends it to clients. It
// returns what is to be said of the turn, or why it is not ours any more.
func (t *turn) listen(box *box, p atoll.Process) (output.Summary, error) {
	parser, err := output.New(string(cmp.Or(t.template.Agent.Format, template.FormatText)))
	if err != nil { // it was checked with the template
		return output.Summary{}, err
	}
	k := &talk{turn: t, box: box, parser: parser, messages: make(chan said, 64)}
	saved := make(chan struct{})
	go func() {
		defer close(saved)
		for m := range k.messages {
			if left := t.stopped(); left == nil || errors.Is(left, errCancelled) {
				t.say(box, m.at, m.message)
			} // else they are for who takes over, and Close does not wait for their hooks
		}
	}()
	defer func() {
		close(k.messages)
		<-saved
	}()
	exit, err := k.attach(t.ctx, p)
	left := t.stopped()
	if left != nil && !errors.Is(left, errCancelled) {
		return output.Summary{}, left
	}
	switch atoll.KindOf(err) {
	case "", atoll.ErrStopped, atoll.ErrNotFound, atoll.ErrNotExist:
	default: // nobody reads any more what it does
		t.put(p)
	}
	k.finish(exit, err)
	return parser.Summary(), nil
}

// said is a message, and where it is in what the agent has printed.
type said struct {
	at      string
	message *agent.Message
}

// A talk is what an agent prints, line by line.
type talk struct {
	turn     *turn
	box      *box
	parser   output.Parser
	messages chan said

	line   []byte // what there is of the next one
	long   bool   // the rest of it is dropped
	torn   bool   // its beginning is lost
	offset int64  // of stdout, so far

	mu     sync.Mutex
	stderr []byte
}

// outage is how long a sandbox is asked again that cannot be reached: an engine that is
// restarted is there again then, and so is the agent.
const outage = 5 * time.Minute

// attach follows the process to its end. A connection that breaks is made again.
func (k *talk) attach(ctx context.Context, p atoll.Process) (atoll.Exit, error) {
	errOffset := int64(0)
	reached := time.Now()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		from, begun := k.offset, time.Now()
		stderr := &counted{w: (*lastBytes)(k)}
		err := p.Attach(ctx, &atoll.Attachment{
			Stdout: k, Stderr: stderr, StdoutFrom: from, StderrFrom: errOffset,
			Gap: func(s atoll.Stream, from, to int64) {
				if s == atoll.Stdout {
					k.gap(to - from)
					k.offset = to
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
		if k.offset > from || time.Since(begun) > 20*time.Second { // else it could not even be made
			pause, reached = 50*time.Millisecond, time.Now()
		}
		if time.Since(reached) > outage {
			return atoll.Exit{}, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return atoll.Exit{}, ctx.Err()
		}
	}
}

// counted counts what goes through it.
type counted struct {
	w io.Writer
	n int64
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// lastBytes keeps the end of stderr.
type lastBytes talk

func (l *lastBytes) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stderr = append(l.stderr, b...)
	if over := len(l.stderr) - maxStderr; over > 0 {
		l.stderr = slices.Delete(l.stderr, 0, over)
	}
	return len(b), nil
}

// gap notes that output was dropped before anybody read it.
func (k *talk) gap(bytes int64) {
	k.line, k.long, k.torn = nil, false, true
	k.turn.v.log.Warn("conversation: some of what an agent printed is lost", "turn", k.turn.id, "bytes", bytes)
}

// Write takes what the agent prints on stdout. It waits for clients that are far
// behind, and so does the agent.
func (k *talk) Write(b []byte) (n int, err error) {
	defer func() { // this may be a goroutine of the provider's
		if p := recover(); p != nil {
			k.turn.v.log.Error("panic in a turn", "turn", k.turn.id, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = atoll.Errorf("conversation", k.turn.conversation.ID, atoll.ErrInternal, "panic: %v", p)
		}
	}()
	at := k.offset
	k.offset += int64(len(b))
	n = len(b)
	for {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		at += int64(len(line)) + 1
		if room := maxLine - len(k.line); len(line) > room {
			line, k.long = line[:room], true
		}
		k.line = append(k.line, line...)
		if !whole {
			return n, nil
		}
		k.take(at)
		b = rest
	}
}

// take passes the line on, which ends at an offset.
func (k *talk) take(at int64) {
	if k.torn {
		k.line, k.long, k.torn = k.line[:0], false, false
		return
	}
	line := bytes.TrimSuffix(k.line, []byte{'\r'})
	if k.long {
		line = append(slices.Clone(line[:200]), "... (a line of the agent's was too long)"...)
	}
	if k.turn.raw {
		k.turn.stream.add(k.turn.ctx, bytes.Clone(line))
	}
	k.pass(k.parser.Line(line), at)
	k.line, k.long = k.line[:0], false
	if cap(k.line) > 1<<20 {
		k.line = nil
	}
}

// pass sends events, and has messages saved: those of what was printed until an offset.
// Of a turn that is taken over the oldest output may be gone, but offsets are the same.
func (k *talk) pass(step output.Step, at int64) {
	if !k.turn.raw {
		for _, e := range step.Events {
			k.turn.stream.add(k.turn.ctx, encode(e))
		}
	}
	for i := range step.Messages {
		k.messages <- said{fmt.Sprintf("%d.%d", at, i), &step.Messages[i]}
	}
}

// finish tells how the agent has ended.
func (k *talk) finish(exit atoll.Exit, err error) {
	if len(k.line) > 0 {
		k.take(k.offset)
	}
	k.turn.mu.Lock()
	if k.turn.cancelled {
		err = context.Canceled
	}
	k.turn.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	end := k.parser.End(exit, tail(k.stderr), err)
	k.pass(end, k.offset+1)
	if k.turn.raw { // the agent has no lines for what went wrong around it
		for _, e := range end.Events {
			if e.Type == output.Error {
				k.turn.stream.add(k.turn.ctx, encode(e))
			}
		}
	}
}

// finish is what follows when the agent has ended: the hook for that, the history, and
// the end of the turn.
func (t *turn) finish(box *box, sum output.Summary, left error) {
	if left == nil {
		t.v.opts.step("finishing")
		sum.Usage = t.used(sum.Usage)
		data := box.data()
		data.TokenUsage = &sum.Usage
		t.v.opts.Hooks.StreamFinish(context.WithoutCancel(t.ctx), box.template.Hooks, data)
		t.archive(box, sum)
		t.v.opts.step("finished")
	}
	t.end()
}

// used is what a turn has used. Codex counts all turns of its thread: what is known of
// those before is taken off, unless it counts less, which a new thread does.
func (t *turn) used(u agent.TokenUsage) agent.TokenUsage {
	if t.template.Agent.Format != template.FormatCodex {
		return u
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), writing)
	defer cancel()
	c, err := t.v.store.FindConversation(ctx, t.conversation.Account, t.conversation.ID)
	if err != nil {
		return u
	}
	s := c.Stats
	if u.Input < s.InputTokens || u.Output < s.OutputTokens || u.Cache < s.CacheTokens {
		return u
	}
	return agent.TokenUsage{Input: u.Input - s.InputTokens, Output: u.Output - s.OutputTokens, Cache: u.Cache - s.CacheTokens}
}

// resume finishes a turn that another program began, or an earlier run of this one. The
// agent's output is read from its start: the events are the same, and so are their ids.
func (t *turn) resume() {
	defer t.settle(nil)
	box, p, err := t.find()
	for pause := 100 * time.Millisecond; err != nil && t.away(err); pause = min(2*pause, 5*time.Second) {
		select {
		case <-time.After(pause):
		case <-t.ctx.Done():
		}
		box, p, err = t.find()
	}
	if stopped := t.stopped(); stopped != nil && !errors.Is(stopped, errCancelled) {
		t.end()
		return
	}
	if err != nil {
		t.v.log.Warn("conversation: a turn that was left cannot be finished", "conversation", t.conversation.ID, "turn", t.id, "err", err)
		t.begin()
		t.broken("the server ended while the turn ran: " + err.Error())
		if t.made = t.conversation.Sandbox == ""; t.made || box == nil || box.sandbox == nil { // it never was more than begun
			t.end()
			return
		}
		t.recount(box)
		t.finish(box, output.Summary{}, nil)
		return
	}
	t.begin()
	t.recount(box)
	t.mu.Lock()
	t.process = p
	t.mu.Unlock()
	sum, left := t.listen(box, p)
	t.finish(box, sum, left)
}

// away reports whether err is that something cannot be reached which may be there again:
// the agent may run on.
func (t *turn) away(err error) bool {
	kind := atoll.KindOf(err)
	return (kind == atoll.ErrUnavailable || kind == atoll.ErrTimeout) && t.ctx.Err() == nil && time.Since(t.began) < outage
}

// recount has the prompt of a turn that another program began be in its history.
func (t *turn) recount(box *box) {
	if m := t.asked(); m != nil {
		t.keep(box, m)
	}
}

// asked is the prompt of a turn that another program began, if that could save it.
func (t *turn) asked() *agent.Message {
	for page := (store.Page{Limit: 10}); ; {
		some, err := t.v.store.Messages(t.ctx, t.conversation.Account, t.conversation.ID, page)
		if err != nil {
			t.v.log.Warn("conversation: the prompt of a turn is not in its history", "conversation", t.conversation.ID, "turn", t.id, "err", err)
		}
		for _, m := range some {
			if m.Key == messageKey(t.id, atPrompt) {
				return m
			}
		}
		if len(some) == 0 || some[0].Turn != t.id {
			return nil
		}
		page.After = some[0].Key
	}
}

// find finds the agent of a turn that was left.
func (t *turn) find() (*box, atoll.Process, error) {
	tpl, err := t.v.opts.Templates.Get(t.conversation.Template, t.conversation.Agent)
	if err != nil {
		return nil, nil, err
	}
	t.template = tpl
	x, err := t.v.store.FindSandbox(t.ctx, t.conversation.Account, t.conversation.Turn.Sandbox)
	if err != nil {
		return nil, nil, err
	}
	b, err := t.v.open(t.ctx, tpl, &t.conversation, x)
	if err != nil {
		return nil, nil, err
	}
	b.turn = t.turns
	p, err := t.findProcess(b)
	return b, p, err
}

// findProcess finds the agent's process, also one that was started just before its
// program died, and could not say so.
func (t *turn) findProcess(b *box) (p atoll.Process, err error) {
	if b.record.External == "" {
		return nil, errNotStarted
	}
	if b.sandbox, err = b.v.provider.Get(t.ctx, b.record.External); err != nil {
		return nil, err
	}
	if id := t.conversation.Turn.Process; id != "" {
		return b.sandbox.Process(t.ctx, id)
	}
	all, err := atoll.Processes(t.ctx, b.sandbox)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if p.Started.After(t.conversation.Turn.Started) && len(p.Args) > 0 && p.Args[0] == t.template.Agent.Command[0] {
			return b.sandbox.Process(t.ctx, p.ID)
		}
	}
	return nil, errNotStarted
}

// errNotStarted is why there is nothing to finish.
var errNotStarted = errors.New("the agent had not been started")

// The stages of ending an agent whose turn is cancelled, and how long each may take.
var stages = []atoll.Signal{atoll.SIGINT, atoll.SIGTERM, atoll.SIGKILL}

const stageTime = 3 * time.Second

// Cancel ends the turn that runs, and returns when it has ended: the agent is asked to
// stop, and killed if it does not. What it has said and done until then is kept. Kinds:
// ErrNotExist (of the conversation), ErrStopped (no turn runs), ErrUnavailable (another
// server runs it).
func (v *Service) Cancel(ctx context.Context, id string) error {
	c, err := v.find(ctx, id)
	switch {
	case err != nil:
		return err
	case c.Turn == nil:
		return atoll.Errorf("cancel", id, atoll.ErrStopped, "no turn runs")
	case !v.owns(c.Turn.ID):
		return atoll.Errorf("cancel", id, atoll.ErrUnavailable, "server %s runs it: ask there", c.Turn.Server)
	}
	v.mu.Lock()
	t := v.turns[key(c.Account, c.ID)]
	v.mu.Unlock()
	if t == nil || t.id != c.Turn.ID {
		return atoll.Errorf("cancel", id, atoll.ErrConflict, "the turn is just beginning: try again")
	}
	t.mu.Lock()
	first := !t.cancelled
	t.cancelled = true
	p := t.process
	t.mu.Unlock()
	switch {
	case first && p == nil:
		t.cancel(errCancelled) // of making the sandbox
	case first:
		v.work.Go(func() { t.kill(p) }) // which waits for it as long as the turn is not done
	}
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// kill ends the agent.
func (t *turn) kill(p atoll.Process) {
	for _, sig := range stages {
		if err := p.Signal(t.ctx, sig); err != nil && atoll.KindOf(err) != atoll.ErrStopped {
			t.v.log.Warn("conversation: an agent could not be told to end", "turn", t.id, "signal", sig, "err", err)
		}
		select {
		case <-t.done:
			return
		case <-time.After(stageTime):
		case <-t.ctx.Done():
			return
		}
	}
}
