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

// cutNote replaces the part of a message beyond the limit.
const cutNote = "\n[cut: a message has no more than 8 MiB]"

// A run holds the state that all parsers share: it builds events and messages.
type run struct {
	step   Step
	blocks int // number of blocks, for their ids
	calls  int // number of calls without an id, for theirs

	raw    string // id of the block of lines in another format; "" if none is open
	blanks int    // blank lines at its end
	last   string // the last such line that is not blank

	draft draft             // the assistant's incomplete message
	open  map[string]string // names of tools by the ids of calls without a result

	session   string
	sum, kept agent.TokenUsage // of the model's messages; of completed messages
	total     *agent.TokenUsage
	cost      float64
	duration  time.Duration
	text      string
	denied    []string

	reason  FinishReason // the agent's own reason; "" if none
	failure string       // the agent's own failure
	summary Summary      // set by End
	ended   bool
}

// takeStep returns the pending events and messages.
func (r *run) takeStep() Step {
	s := r.step
	r.step = Step{}
	return s
}

func (r *run) emitEvent(e Event) { r.step.Events = append(r.step.Events, e) }

// A part is a kind of a message's content.
type part int

const (
	noPart part = iota
	textPart
	rawPart
	otherPart
)

// A draft is an incomplete message of the assistant.
type draft struct {
	body   strings.Builder
	last   part
	full   bool
	size   int
	calls  []agent.ToolCall
	tokens agent.TokenUsage
}

// writePart appends to the body. Consecutive texts are joined, other parts are
// separated by an empty line, and consecutive raw lines stay lines.
func (d *draft) writePart(kind part, s string) {
	switch {
	case d.last == rawPart && kind == rawPart:
		d.appendBody("\n")
	case d.body.Len() > 0 && d.last != kind:
		for range 2 {
			if !strings.HasSuffix(d.body.String(), "\n\n") {
				d.appendBody("\n")
			}
		}
	}
	d.last = kind
	d.appendBody(s)
}

func (d *draft) appendBody(s string) {
	if d.full || s == "" {
		return
	}
	part := cutHead(s, maxMessage-d.size)
	d.body.WriteString(part)
	d.size += len(part)
	if len(part) < len(s) {
		d.full = true
		d.body.WriteString(cutNote)
	}
}

// beginText opens a block of text or thought.
func (r *run) beginText(kind EventType, parent string) string {
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
	r.emitEvent(Event{Type: kind, ID: id, ParentToolCallID: parent})
	return id
}

// emitDelta adds to an open block, unless s is empty.
func (r *run) emitDelta(kind EventType, id, parent, s string) {
	if s == "" {
		return
	}
	r.closeRaw()
	r.emitEvent(Event{Type: kind, ID: id, Delta: s, ParentToolCallID: parent})
}

// emitText emits a complete text.
func (r *run) emitText(parent, s string) {
	if s = cleanText(s); s == "" {
		return
	}
	id := r.beginText(TextStart, parent)
	r.emitDelta(TextDelta, id, parent, s)
	r.emitEvent(Event{Type: TextEnd, ID: id, ParentToolCallID: parent})
	if parent == "" {
		r.draft.writePart(textPart, s)
	}
}

// emitThought emits a complete thought, which messages don't keep.
func (r *run) emitThought(parent, s string) {
	id := r.beginText(ReasoningStart, parent)
	r.emitDelta(ReasoningDelta, id, parent, cleanText(s))
	r.emitEvent(Event{Type: ReasoningEnd, ID: id, ParentToolCallID: parent})
	r.separateText(parent)
}

// separateText notes that something came between two texts.
func (r *run) separateText(parent string) {
	if parent == "" {
		r.draft.last = otherPart
	}
}

// emitLine emits a line in another format; consecutive ones form one block. With
// between, blank lines only count between others.
func (r *run) emitLine(b []byte, between bool) {
	s := plainText(bytes.TrimSuffix(b, []byte("\r")))
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
		r.emitRawLine("")
	}
	r.emitRawLine(s)
}

func (r *run) emitRawLine(s string) {
	r.emitEvent(Event{Type: TextDelta, ID: r.raw, Delta: s + "\n"})
	r.draft.writePart(rawPart, s)
}

// closeRaw ends the block of such lines.
func (r *run) closeRaw() {
	if r.raw == "" {
		return
	}
	r.emitEvent(Event{Type: TextEnd, ID: r.raw})
	r.raw = ""
}

// callID returns the cleaned id of a call, or a new one if it has none.
func (r *run) callID(id string) string {
	if id = cutHead(cleanText(id), maxID); id != "" {
		return id
	}
	r.calls++
	return "call-" + strconv.Itoa(r.calls)
}

// emitCall emits a complete call of a tool, unless it is already waiting for its
// result.
func (r *run) emitCall(id, name, parent string, input json.RawMessage) {
	if _, twice := r.open[id]; twice {
		return
	}
	name, text := toolName(name), inputOf(input)
	r.beginCall(id, name, parent)
	r.emitEvent(Event{Type: ToolInputDelta, ID: id, Delta: text, ParentToolCallID: parent})
	r.endCall(id, name, parent, text)
}

func (r *run) beginCall(id, name, parent string) {
	r.closeRaw()
	r.emitEvent(Event{Type: ToolInputStart, ID: id, ToolName: name, ProviderExecuted: true, ParentToolCallID: parent})
}

// endCall ends the input of a call, and emits the call.
func (r *run) endCall(id, name, parent, input string) {
	r.closeRaw()
	r.emitEvent(Event{Type: ToolInputEnd, ID: id, ParentToolCallID: parent})
	r.emitEvent(Event{Type: ToolCall, ToolCallID: id, ToolName: name, Input: input, ProviderExecuted: true, ParentToolCallID: parent})
	if r.open == nil {
		r.open = map[string]string{}
	}
	if len(r.open) < maxOpen {
		r.open[id] = name
	}
	if parent != "" {
		return
	}
	r.separateText(parent)
	d := &r.draft
	if d.size += len(input) + len(id) + len(name); d.size > maxMessage {
		d.size -= len(input)
		input = quoteJSON(strings.TrimSpace(cutNote))
		d.size = min(d.size, maxMessage)
	}
	if len(d.calls) < maxOpen {
		d.calls = append(d.calls, agent.ToolCall{ID: id, Type: "function", Name: name, Input: json.RawMessage(input), Status: agent.ToolCalled})
	}
}

// A result is the result of a tool.
type result struct {
	id     string
	name   string // of the tool, if the call is unknown
	output string
	value  json.RawMessage // for clients; nil means output
	failed string          // the reason; "" if it succeeded
}

// emitResult emits the result of a tool, and returns it for the message. A result
// without a call gets one, since clients expect it.
func (r *run) emitResult(parent string, res result) agent.ToolCall {
	r.closeRaw()
	name, ok := r.open[res.id]
	delete(r.open, res.id)
	if !ok {
		name = toolName(res.name)
		r.emitEvent(Event{Type: ToolCall, ToolCallID: res.id, ToolName: name, Input: "{}", ProviderExecuted: true, ParentToolCallID: parent})
	}
	r.separateText(parent)
	e := Event{Type: ToolResult, ToolCallID: res.id, ToolName: name, Result: res.value, ProviderExecuted: true, ParentToolCallID: parent}
	c := agent.ToolCall{ID: res.id, Type: "function", Name: name, Output: res.output, Status: agent.ToolCompleted}
	switch {
	case res.failed != "":
		e.Type, e.Error, e.Result = ToolError, cleanText(res.failed), nil
		c.Status, c.Error = agent.ToolFailed, cutHead(e.Error, maxError)
	case e.Result == nil:
		e.Result = json.RawMessage(quoteJSON(res.output))
	}
	r.emitEvent(e)
	return c
}

// addResults adds results of tools as one message.
func (r *run) addResults(list []agent.ToolCall) {
	if len(list) == 0 {
		return
	}
	room := maxMessage
	for i := range list {
		if c := &list[i]; len(c.Output) > room {
			c.Output = cutHead(c.Output, room) + cutNote
			room = 0
		} else {
			room -= len(c.Output)
		}
	}
	r.step.Messages = append(r.step.Messages, agent.Message{Role: agent.RoleTool, ToolCalls: list})
}

// countTokens adds to the tokens of the model, and with keep to those of the message.
func (r *run) countTokens(u agent.TokenUsage, keep bool) {
	r.sum.Add(u)
	if keep {
		r.draft.tokens.Add(u)
	}
}

// flushMessage completes the assistant's message, unless it is empty.
func (r *run) flushMessage() {
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

// finishRun ends a run; the caller has closed all blocks except raw lines.
func (r *run) finishRun(exit atoll.Exit, stderr string, err error) Step {
	if r.ended {
		return Step{}
	}
	r.flushMessage()
	reason, failure := r.endReason(exit, stderr, err)
	if r.duration == 0 {
		r.duration = max(0, time.Duration(exit.Duration))
	}
	r.summary = r.currentSummary()
	r.summary.FinishReason, r.summary.Error = reason, failure
	r.ended = true
	if failure != "" {
		r.emitEvent(Event{Type: Error, Error: failure})
	}
	r.emitEvent(Event{Type: Finish, FinishReason: reason, Usage: usageOf(r.summary.Usage), Metadata: &Metadata{
		SessionID: r.session, CostUSD: r.cost, DurationMS: r.duration.Milliseconds(), Denied: r.denied,
	}})
	return r.takeStep()
}

// endReason returns the reason of the run's end, and its failure.
func (r *run) endReason(exit atoll.Exit, stderr string, err error) (FinishReason, string) {
	switch {
	case errors.Is(err, context.Canceled):
		return FinishCancelled, ""
	case err != nil:
		return FinishError, addStderr(cleanText(err.Error()), stderr)
	case r.failure != "" && r.reason != "" && r.reason != FinishError: // a limit, which stderr does not explain
		return r.reason, r.failure
	case r.failure != "":
		return FinishError, addStderr(r.failure, stderr)
	case !exit.Success():
		failure := exit.String()
		if why := lastLines(stderr); why != "" {
			failure += ": " + why
		} else if why := strings.TrimSpace(r.last); why != "" {
			failure += ": " + cutHead(why, maxError)
		}
		return FinishError, failure
	case r.reason != "":
		return r.reason, ""
	}
	return FinishOther, ""
}

// addStderr adds the end of stderr to the reason of a failure, unless the reason has it already.
func addStderr(failure, stderr string) string {
	if why := lastLines(stderr); why != "" && !strings.Contains(failure, why) {
		failure += "\nstderr: " + why
	}
	return failure
}

// lastLines returns the visible text of the last lines of stderr, whole ones unless the last one is
// too long.
func lastLines(stderr string) string {
	tail := cutTail(strings.TrimSpace(stderr), maxError)
	if _, whole, ok := strings.Cut(tail, "\n"); ok && len(tail) < len(strings.TrimSpace(stderr)) {
		tail = whole
	}
	return strings.TrimSpace(plainText([]byte(tail)))
}

// Summary implements Parser.
func (r *run) Summary() Summary {
	if r.ended {
		return r.summary
	}
	return r.currentSummary()
}

func (r *run) currentSummary() Summary {
	s := Summary{
		SessionID: r.session, Usage: r.sum, CostUSD: r.cost, Duration: r.duration,
		Text: r.text, Denied: r.denied,
	}
	if r.total != nil {
		s.Usage = *r.total
	}
	s.Rest = excessTokens(s.Usage, r.kept)
	return s
}

// excessTokens returns the part of u that exceeds v.
func excessTokens(u, v agent.TokenUsage) agent.TokenUsage {
	return agent.TokenUsage{Input: max(0, u.Input-v.Input), Output: max(0, u.Output-v.Output), Cache: max(0, u.Cache-v.Cache)}
}

// tokenCount converts a printed count: never negative, and small enough that sums do
// not overflow.
func tokenCount(n float64) int64 {
	return int64(min(max(n, 0), 1e15))
}

// decodeJSON parses b into v. It ignores values of a wrong type; other errors are
// returned.
func decodeJSON(b []byte, v any) error {
	err := json.Unmarshal(b, v)
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		return nil
	}
	return err
}

// inputOf returns the input of a tool as compact JSON.
func inputOf(input json.RawMessage) string {
	var out bytes.Buffer
	if err := json.Compact(&out, input); err != nil || out.Len() == 0 || out.String() == "null" {
		return "{}"
	}
	return out.String()
}

// quoteJSON returns s as JSON.
func quoteJSON(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // every string has a JSON form
	}
	return string(b)
}

// toolName returns a cleaned name.
func toolName(name string) string {
	if name = cutHead(cleanText(name), maxID); name != "" {
		return name
	}
	return "unknown"
}

// toValidUTF8 replaces invalid UTF-8 in a line.
func toValidUTF8(line []byte) []byte {
	if utf8.Valid(line) {
		return line
	}
	return bytes.ToValidUTF8(line, []byte(string(utf8.RuneError)))
}
