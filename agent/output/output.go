// Package output parses what agent programs print on stdout into events for clients that
// follow along, and messages to store.
//
// The formats are "claude" (claude -p --verbose --output-format stream-json, with or
// without --include-partial-messages), "codex" (codex exec --json), and "text", for any
// other program. The output comes from a sandbox, so the parsers don't trust it: events
// are always well formed, and memory is bounded.
//
//	p, err := output.New("claude")
//	for lines.Scan() {
//		step := p.Line(lines.Bytes())
//		send(step.Events)
//		save(step.Messages)
//	}
//	step := p.End(exit, stderr, nil)
package output

import (
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

// Bounds, in bytes or numbers. Longer values are cut, with a note.
const (
	maxMessage = 8 << 20 // text of a message, and of its tool calls; and inputs being streamed
	maxError   = 4 << 10 // stderr in an error
	maxOpen    = 1024    // tool calls without a result whose names are known
	maxThreads = 64      // concurrent subagents
	maxBlocks  = 64      // streamed blocks of one message
	maxTexts   = 8       // unfinished texts of codex, kept to find the new part
	maxID      = 256     // an id, or a name
)

// A Parser parses the output of one run of an agent. It starts no goroutine and needs
// no closing. It must not be used concurrently.
//
// Equal lines give equal events, ids and messages, so a stream can be reproduced from
// the output. Ids of blocks are unique in a run, not in a conversation.
type Parser interface {
	// Line parses one line, without its newline; it ignores a \r at its end and escape
	// sequences of a terminal around it. A line in another format becomes text, which
	// is shown and kept. Line doesn't retain the slice.
	Line(line []byte) Step

	// End takes the end of the run: the exit of the process, its stderr, and the
	// caller's error if the run didn't end by itself. An error with context.Canceled in
	// its chain means that somebody cancelled the run.
	//
	// End closes open blocks, completes the last message, adds an error event if the
	// run failed, and finally a finish event. It is called once, and Line not again.
	End(exit atoll.Exit, stderr string, err error) Step

	// Summary returns the state so far; after End it is final.
	Summary() Summary
}

// A Step is the result of a line. The caller owns it.
type Step struct {
	Events []Event
	// Messages are the messages completed by the line, with Role, Body, Tokens and
	// ToolCalls; the caller fills in the rest. A message of the assistant is complete
	// when the next one begins, a tool's result comes, or the run ends; it precedes the
	// messages with the results of its calls. Thoughts, and output of subagents, only
	// become events.
	Messages []agent.Message
}

// A Summary describes a run.
type Summary struct {
	SessionID string // the agent's own
	// Usage is the run's usage as reported by the agent; before that, the sum over its
	// messages. For a resumed thread, codex counts all turns.
	Usage agent.TokenUsage
	// Rest is the part of Usage that is in the Tokens of no message.
	Rest         agent.TokenUsage
	CostUSD      float64
	Duration     time.Duration
	FinishReason FinishReason // "" before End
	Text         string       // the last non-empty body of an assistant's message
	Error        string       // the reason of a failure; "" if the run succeeded or was cancelled
	Denied       []string     // tools that the agent was not allowed to use
}

// formats creates a parser for each format.
var formats = map[string]func() Parser{
	"claude": func() Parser { return newClaude() },
	"codex":  func() Parser { return newCodex() },
	"text":   func() Parser { return newText() },
}

// Formats returns the names that New accepts, sorted.
func Formats() []string { return []string{"claude", "codex", "text"} }

// New returns a parser for one run of an agent with the given output format. Kinds:
// ErrInvalid (no such format).
func New(format string) (Parser, error) {
	parser, ok := formats[format]
	if !ok {
		return nil, atoll.Errorf("dialect", format, atoll.ErrInvalid, "no format %q: use claude, codex or text", format)
	}
	return parser(), nil
}
