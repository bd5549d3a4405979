package conversation

import (
	"bytes"
	"cmp"
	"context"
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
	"github.com/seed46cd37a8/atoll/layer/audit"
)

// Limits of the output of agents, in bytes.
const (
	maxLine        = 8 << 20  // the length at which a line is truncated
	maxAgentOutput = 16 << 20 // the recent output that the provider retains, for a program that takes the turn over
	maxStderr      = 8 << 10  // the end of stderr that an error contains
)

// readOutput reads the agent's output until the agent has ended, sends its events to clients and
// saves its messages. It returns the summary of the turn, or the reason why the turn now belongs
// to another program.
func (t *turn) readOutput() (output.Summary, error) {
	parser, err := output.New(string(cmp.Or(t.template.Agent.Format, template.FormatText)))
	if err != nil { // cannot happen: the template is checked
		return output.Summary{}, err
	}
	r := &outputReader{turn: t, parser: parser, messages: make(chan printedMessage, 64)}
	saved := make(chan struct{})
	go func() {
		defer close(saved)
		for m := range r.messages {
			if t.leaveCause() == nil { // else the next program saves it, and Close does not wait for its hook
				t.saveMessage(m.position, m.message)
			}
		}
	}()
	defer func() {
		close(r.messages)
		<-saved
	}()
	exit, err := r.followProcess(t.ctx, t.process)
	if cause := t.leaveCause(); cause != nil {
		return output.Summary{}, cause
	}
	switch atoll.KindOf(err) {
	case "", atoll.ErrStopped, atoll.ErrNotFound, atoll.ErrNotExist:
	default: // the agent may still run, and nobody reads its output
		t.killAgent()
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
	if r.turn.currentState().isCancelled() {
		err = context.Canceled
	}
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

// outputTail returns the end of a command's output for an error, as valid UTF-8 and without text
// that looks like a secret.
func outputTail(out []byte) string {
	tail := bytes.TrimSpace(out[max(0, len(out)-maxStderr):])
	return audit.RedactText(strings.ToValidUTF8(string(tail), "�"))
}
