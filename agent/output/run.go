package output

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

// cutNote is what is written in place of what a message has no room for.
const cutNote = "\n[cut: a message has no more than 8 MiB]"

// A run is what the parsers have in common: it makes events and messages.
type run struct {
	step   Step
	blocks int // begun so far, for their ids
	calls  int // without an id so far, for theirs

	raw    string // the id of the block of lines that are not of the dialect; "" when none is open
	blanks int    // lines at its end that are blank
	last   string // the last such line that is not blank

	draft draft             // the assistant's message that is not complete
	open  map[string]string // names of tools by the ids of calls that have no result

	session   string
	sum, kept agent.TokenUsage // of the model's messages; of those that were handed out
	total     *agent.TokenUsage
	cost      float64
	duration  time.Duration
	text      string
	denied    []string

	reason  FinishReason // what the agent says of its end; "" if nothing
	failure string       // what it says of its failure
	summary Summary      // after End
	ended   bool
}

// take hands out what there is.
func (r *run) take() Step {
	s := r.step
	r.step = Step{}
	return s
}

func (r *run) emit(e Event) { r.step.Events = append(r.step.Events, e) }

// A part is a kind of what messages are made of.
type part int

const (
	nothing part = iota
	textPart
	rawPart
	otherPart
)

// A draft is a message of the assistant that is not complete.
type draft struct {
	body   strings.Builder
	last   part
	full   bool
	size   int
	calls  []agent.ToolCall
	tokens agent.TokenUsage
}

// write adds to the body. Texts that follow each other are one text; around anything
// else there is an empty line, and lines that the agent did not mean stay lines.
func (d *draft) write(kind part, s string) {
	switch {
	case d.last == rawPart && kind == rawPart:
		d.add("\n")
	case d.body.Len() > 0 && d.last != kind:
		for range 2 {
			if !strings.HasSuffix(d.body.String(), "\n\n") {
				d.add("\n")
			}
		}
	}
	d.last = kind
	d.add(s)
}

func (d *draft) add(s string) {
	if d.full || s == "" {
		return
	}
	part := cut(s, maxMessage-d.size)
	d.body.WriteString(part)
	d.size += len(part)
	if len(part) < len(s) {
		d.full = true
		d.body.WriteString(cutNote)
	}
}

// begin opens a block.
func (r *run) begin(kind EventType, parent string) string {
	r.closeRaw()
	return r.beginBlock(kind, parent)
}

func (r *run) beginBlock(kind EventType, parent string) string {
	r.blocks++
	id := "text-"
	if kind == ReasoningStart {
		id = "reasoning-"
	}
	id += strconv.Itoa(r.blocks)
	r.emit(Event{Type: kind, ID: id, ParentToolCallID: parent})
	return id
}

// delta adds to an open block, if there is anything to add.
func (r *run) delta(kind EventType, id, parent, s string) {
	if s == "" {
		return
	}
	r.closeRaw()
	r.emit(Event{Type: kind, ID: id, Delta: s, ParentToolCallID: parent})
}

// say is a whole text.
func (r *run) say(parent, s string) {
	if s = scrub(s); s == "" {
		return
	}
	id := r.begin(TextStart, parent)
	r.delta(TextDelta, id, parent, s)
	r.emit(Event{Type: TextEnd, ID: id, ParentToolCallID: parent})
	if parent == "" {
		r.draft.write(textPart, s)
	}
}

// think is a whole thought, which is shown and not kept.
func (r *run) think(parent, s string) {
	id := r.begin(ReasoningStart, parent)
	r.delta(ReasoningDelta, id, parent, scrub(s))
	r.emit(Event{Type: ReasoningEnd, ID: id, ParentToolCallID: parent})
	r.other(parent)
}

// other notes that something came between texts.
func (r *run) other(parent string) {
	if parent == "" {
		r.draft.last = otherPart
	}
}

// line is a line that is not of the dialect. Such lines that follow each other are one
// block. With between, blank ones count between others only.
func (r *run) line(b []byte, between bool) {
	s := plain(bytes.TrimSuffix(b, []byte("\r")))
	blank := strings.TrimSpace(s) == ""
	if blank && between {
		r.blanks = min(r.blanks+1, maxBlocks)
		return
	}
	if !blank {
		r.last = s
	}
	if r.raw == "" {
		r.raw, r.blanks = r.beginBlock(TextStart, ""), 0
	}
	for ; r.blanks > 0; r.blanks-- {
		r.rawLine("")
	}
	r.rawLine(s)
}

func (r *run) rawLine(s string) {
	r.emit(Event{Type: TextDelta, ID: r.raw, Delta: s + "\n"})
	r.draft.write(rawPart, s)
}

// closeRaw ends the block of such lines.
func (r *run) closeRaw() {
	if r.raw == "" {
		return
	}
	r.emit(Event{Type: TextEnd, ID: r.raw})
	r.raw = ""
}

// known is id as it is used, one of its own if there is none.
func (r *run) known(id string) string {
	if id = cut(scrub(id), maxID); id != "" {
		return id
	}
	r.calls++
	return "call-" + strconv.Itoa(r.calls)
}

// call is a whole call of a tool. One that waits for its result is not made again.
func (r *run) call(id, name, parent string, input json.RawMessage) {
	if _, twice := r.open[id]; twice {
		return
	}
	name, text := toolName(name), inputOf(input)
	r.beginCall(id, name, parent)
	r.emit(Event{Type: ToolInputDelta, ID: id, Delta: text, ParentToolCallID: parent})
	r.endCall(id, name, parent, text)
}

func (r *run) beginCall(id, name, parent string) {
	r.closeRaw()
	r.emit(Event{Type: ToolInputStart, ID: id, ToolName: name, ProviderExecuted: true, ParentToolCallID: parent})
}

// endCall ends the input of a call, and makes it.
func (r *run) endCall(id, name, parent, input string) {
	r.closeRaw()
	r.emit(Event{Type: ToolInputEnd, ID: id, ParentToolCallID: parent})
	r.emit(Event{Type: ToolCall, ToolCallID: id, ToolName: name, Input: input, ProviderExecuted: true, ParentToolCallID: parent})
	if r.open == nil {
		r.open = map[string]string{}
	}
	if len(r.open) < maxOpen {
		r.open[id] = name
	}
	if parent != "" {
		return
	}
	r.other(parent)
	d := &r.draft
	if d.size += len(input) + len(id) + len(name); d.size > maxMessage {
		d.size -= len(input)
		input = quote(strings.TrimSpace(cutNote))
		d.size = min(d.size, maxMessage)
	}
	if len(d.calls) < maxOpen {
		d.calls = append(d.calls, agent.ToolCall{ID: id, Type: "function", Name: name, Input: json.RawMessage(input), Status: agent.ToolCalled})
	}
}

// A result is what a tool gave.
type result struct {
	id     string
	name   string // of the tool, if the call is not known
	output string
	value  json.RawMessage // what clients get; nil is output
	failed string          // why; "" if it did not
}

// result shows what a tool gave, and returns it as it is kept. A result without a call
// gets one, so that clients can follow.
func (r *run) result(parent string, res result) agent.ToolCall {
	r.closeRaw()
	name, ok := r.open[res.id]
	delete(r.open, res.id)
	if !ok {
		name = toolName(res.name)
		r.emit(Event{Type: ToolCall, ToolCallID: res.id, ToolName: name, Input: "{}", ProviderExecuted: true, ParentToolCallID: parent})
	}
	r.other(parent)
	e := Event{Type: ToolResult, ToolCallID: res.id, ToolName: name, Result: res.value, ProviderExecuted: true, ParentToolCallID: parent}
	c := agent.ToolCall{ID: res.id, Type: "function", Name: name, Output: res.output, Status: agent.ToolCompleted}
	switch {
	case res.failed != "":
		e.Type, e.Error, e.Result = ToolError, scrub(res.failed), nil
		c.Status, c.Error = agent.ToolFailed, cut(e.Error, maxError)
	case e.Result == nil:
		e.Result = json.RawMessage(quote(res.output))
	}
	r.emit(e)
	return c
}

// results keeps what tools gave as one message.
func (r *run) results(list []agent.ToolCall) {
	if len(list) == 0 {
		return
	}
	room := maxMessage
	for i := range list {
		if c := &list[i]; len(c.Output) > room {
			c.Output = cut(c.Output, room) + cutNote
			room = 0
		} else {
			room -= len(c.Output)
		}
	}
	r.step.Messages = append(r.step.Messages, agent.Message{Role: agent.RoleTool, ToolCalls: list})
}

// count adds to the tokens of the model, and of its message if it is one to keep.
func (r *run) count(u agent.TokenUsage, keep bool) {
	r.sum.Add(u)
	if keep {
		r.draft.tokens.Add(u)
	}
}

// flush completes the message of the assistant, if there is anything in it.
func (r *run) flush() {
	r.closeRaw()
	d := &r.draft
	body := d.body.String()
	if strings.TrimSpace(body) == "" {
		body = ""
	}
	if body == "" && len(d.calls) == 0 {
		return
	}
	if body != "" {
		r.text = body
	}
	r.kept.Add(d.tokens)
	r.step.Messages = append(r.step.Messages, agent.Message{Role: agent.RoleAssistant, Body: body, Tokens: d.tokens, ToolCalls: d.calls})
	r.draft = draft{}
}

// end is the end of all parsers; open blocks but for raw lines are ended.
func (r *run) end(exit atoll.Exit, stderr string, err error) Step {
	if r.ended {
		return Step{}
	}
	r.flush()
	reason, failure := r.verdict(exit, stderr, err)
	if r.duration == 0 {
		r.duration = max(0, time.Duration(exit.Duration))
	}
	r.summary = r.now()
	r.summary.FinishReason, r.summary.Error = reason, failure
	r.ended = true
	if failure != "" {
		r.emit(Event{Type: Error, Error: failure})
	}
	r.emit(Event{Type: Finish, FinishReason: reason, Usage: usageOf(r.summary.Usage), Metadata: &Metadata{
		SessionID: r.session, CostUSD: r.cost, DurationMS: r.duration.Milliseconds(), Denied: r.denied,
	}})
	return r.take()
}

// verdict is how the run ended.
func (r *run) verdict(exit atoll.Exit, stderr string, err error) (FinishReason, string) {
	switch {
	case errors.Is(err, context.Canceled):
		return FinishCancelled, ""
	case err != nil:
		return FinishError, scrub(err.Error())
	case r.failure != "" && r.reason != "":
		return r.reason, r.failure
	case r.failure != "":
		return FinishError, r.failure
	case !exit.Success():
		failure := exit.String()
		if why := strings.TrimSpace(plain([]byte(tail(stderr, maxError)))); why != "" {
			failure += ": " + why
		} else if why := strings.TrimSpace(r.last); why != "" {
			failure += ": " + cut(why, maxError)
		}
		return FinishError, failure
	case r.reason != "":
		return r.reason, ""
	}
	return FinishOther, ""
}

// Summary is that of a Parser.
func (r *run) Summary() Summary {
	if r.ended {
		return r.summary
	}
	return r.now()
}

func (r *run) now() Summary {
	s := Summary{
		SessionID: r.session, Usage: r.sum, CostUSD: r.cost, Duration: r.duration,
		Text: r.text, Denied: r.denied,
	}
	if r.total != nil {
		s.Usage = *r.total
	}
	s.Rest = beyond(s.Usage, r.kept)
	return s
}

// beyond is what u has more than v.
func beyond(u, v agent.TokenUsage) agent.TokenUsage {
	return agent.TokenUsage{Input: max(0, u.Input-v.Input), Output: max(0, u.Output-v.Output), Cache: max(0, u.Cache-v.Cache)}
}

// tokens is a count that somebody printed: never negative, and sums do not overflow.
func tokens(n float64) int64 {
	return int64(min(max(n, 0), 1e15))
}

// decode reads what there is of v in b. Values of other types than they should be are
// left out; anything else that is wrong is an error.
func decode(b []byte, v any) error {
	err := json.Unmarshal(b, v)
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		return nil
	}
	return err
}

// inputOf is the input of a tool as JSON without space.
func inputOf(input json.RawMessage) string {
	var out bytes.Buffer
	if err := json.Compact(&out, input); err != nil || out.Len() == 0 || out.String() == "null" {
		return "{}"
	}
	return out.String()
}

// quote is s as JSON.
func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // there are no strings that JSON has not
	}
	return string(b)
}

// toolName is name as it is used.
func toolName(name string) string {
	if name = cut(scrub(name), maxID); name != "" {
		return name
	}
	return "unknown"
}

// valid is line without what is not UTF-8.
func valid(line []byte) []byte {
	if utf8.Valid(line) {
		return line
	}
	return bytes.ToValidUTF8(line, []byte(string(utf8.RuneError)))
}
