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

// The bounds. What is longer is cut, and says so.
const (
	maxMessage = 8 << 20 // of the text of a message, and of its tool calls; of inputs that are being streamed
	maxError   = 4 << 10 // of what stderr says of a failure
	maxOpen    = 1024    // tool calls without a result, of which names are known
	maxLanes   = 64      // subagents at a time
	maxBlocks  = 64      // blocks of one message that are being streamed
	maxTexts   = 8       // texts of codex that have begun, which are kept to see what is new
	maxID      = 256     // of an id, or of a name
)

// A Parser reads what one run of an agent prints. It keeps no goroutine and needs no
// closing. It must not be used by several goroutines at once.
//
// The same lines give the same events, ids and messages: a stream can be made again
// from what was printed. Ids of blocks are unique in a run, not in a conversation.
type Parser interface {
	// Line reads one line, without its end; a \r at its end, and escape sequences of a
	// terminal around it, do not matter. A line that is not of the dialect is text, which
	// is shown and kept. The line is not kept.
	Line(line []byte) Step

	// End says how the run ended: what the process left, what it printed on stderr, and
	// an error of the caller's, if it did not come to an end by itself. An error with
	// context.Canceled in its chain is that somebody did not want it any longer.
	//
	// It ends open blocks, completes the last message, gives an error event if the run
	// failed, and as the last one finish. It is called once, and Line not again.
	End(exit atoll.Exit, stderr string, err error) Step

	// Summary is what is known so far; after End it is final.
	Summary() Summary
}

// A Step is what a line was good for. It is the caller's.
type Step struct {
	Events []Event
	// Messages are those that are complete now, with Role, Body, Tokens and ToolCalls;
	// the rest is the caller's to fill in. A message of the assistant comes when the next
	// one begins, a tool's result comes, or the run ends; it is before the messages with
	// the results of its calls. Thoughts, and what subagents say and do, are events only.
	Messages []agent.Message
}

// A Summary is what a run came to.
type Summary struct {
	SessionID string // the agent's own
	// Usage is what the agent says that the run used; until it says so, the sum of what
	// its messages say. Of a thread that codex resumed, codex counts all turns.
	Usage agent.TokenUsage
	// Rest is what of Usage is in the Tokens of no message.
	Rest         agent.TokenUsage
	CostUSD      float64
	Duration     time.Duration
	FinishReason FinishReason // "" before End
	Text         string       // the body of the last message of the assistant that has one
	Error        string       // why it failed; "" if it did not, or was cancelled
	Denied       []string     // tools which the agent was not allowed to use
}

// formats makes a parser for each dialect.
var formats = map[string]func() Parser{
	"claude": func() Parser { return newClaude() },
	"codex":  func() Parser { return newCodex() },
	"text":   func() Parser { return newText() },
}

// Formats are the names that New knows, sorted.
func Formats() []string { return []string{"claude", "codex", "text"} }

// New returns a parser for one run of an agent that prints in the format. Kinds:
// ErrInvalid (no such format).
func New(format string) (Parser, error) {
	parser, ok := formats[format]
	if !ok {
		return nil, atoll.Errorf("dialect", format, atoll.ErrInvalid, "no format %q: use claude, codex or text", format)
	}
	return parser(), nil
}
