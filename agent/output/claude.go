package output

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

// claude parses the stream-json of Claude Code. The output of subagents is interleaved,
// so each agent has a thread; their events are emitted, and messages keep only the
// result of the call that started them.
type claude struct {
	run
	threads   []*thread // the first is the main agent
	stop      string    // the model's last stop reason
	streaming int       // bytes of incomplete inputs
}

// A thread is the output of the main agent or of one subagent.
type thread struct {
	parent  string           // the call that started the subagent; "" for the main agent
	id      string           // of the current message
	counted agent.TokenUsage // already counted for that message
	blocks  []*streamedBlock // of that message
}

func newClaude() *claude { return &claude{threads: []*thread{{}}} }

// A claudeLine is a line of any type.
type claudeLine struct {
	Type    string  `json:"type"`
	Subtype string  `json:"subtype"`
	Session string  `json:"session_id"`
	Parent  *string `json:"parent_tool_use_id"`
	Message struct {
		ID      string          `json:"id"`
		Content json.RawMessage `json:"content"`
		Stop    string          `json:"stop_reason"`
		Usage   *claudeUsage    `json:"usage"`
	} `json:"message"`
	Event json.RawMessage `json:"event"`

	// Fields of usage_stats, which an earlier version printed.
	Input  float64 `json:"input_tokens"`
	Output float64 `json:"output_tokens"`
	Cache  float64 `json:"cache_read_tokens"`
}

// A claudeBlock is a block of content.
type claudeBlock struct {
	Type     string          `json:"type"`
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Text     string          `json:"text"`
	Thinking string          `json:"thinking"`
	Input    json.RawMessage `json:"input"`
	Call     string          `json:"tool_use_id"`
	Content  json.RawMessage `json:"content"`
	IsError  bool            `json:"is_error"`
}

type claudeUsage struct {
	Input   float64 `json:"input_tokens"`
	Output  float64 `json:"output_tokens"`
	Written float64 `json:"cache_creation_input_tokens"`
	Read    float64 `json:"cache_read_input_tokens"`
}

func (u *claudeUsage) tokenUsage() agent.TokenUsage {
	return agent.TokenUsage{Input: tokenCount(u.Input), Output: tokenCount(u.Output), Cache: tokenCount(u.Written) + tokenCount(u.Read)}
}

// Line implements Parser.
func (c *claude) Line(b []byte) Step {
	if c.ended {
		return Step{}
	}
	b = toValidUTF8(b)
	var l claudeLine
	if o := trimObject(b); o == nil || decodeJSON(o, &l) != nil || l.Type == "" {
		c.emitLine(b, true)
	} else {
		c.readLine(&l, o)
	}
	return c.takeStep()
}

func (c *claude) readLine(l *claudeLine, whole []byte) {
	if l.Session != "" {
		c.session = cutHead(cleanText(l.Session), maxID)
	}
	parent := ""
	if l.Parent != nil {
		parent = cutHead(cleanText(*l.Parent), maxID)
	}
	switch l.Type {
	case "assistant":
		c.readAssistant(c.threadOf(parent), parent, l)
	case "user":
		c.readUser(parent, l)
	case "stream_event":
		c.streamEvent(c.threadOf(parent), parent, l.Event)
	case "result":
		c.readEnd(whole)
	case "usage_stats":
		if c.reason == "" {
			c.total = &agent.TokenUsage{Input: tokenCount(l.Input), Output: tokenCount(l.Output), Cache: tokenCount(l.Cache)}
		}
	}
}

// threadOf returns the thread of a subagent, "" for the main agent. Too many subagents
// share one.
func (c *claude) threadOf(parent string) *thread {
	for _, l := range c.threads {
		if l.parent == parent {
			return l
		}
	}
	if len(c.threads) > maxThreads {
		return c.threads[maxThreads]
	}
	l := &thread{parent: parent}
	c.threads = append(c.threads, l)
	return l
}

// beginMessage makes id the current message of the thread.
func (c *claude) beginMessage(l *thread, id string) {
	if id != "" && id == l.id {
		return
	}
	c.closeBlocks(l)
	if l.parent == "" {
		c.flushMessage()
	}
	*l = thread{parent: l.parent, id: id}
}

// countUsage counts the usage of a message, which reports it more than once.
func (c *claude) countUsage(l *thread, u *claudeUsage) {
	if u == nil {
		return
	}
	more := excessTokens(u.tokenUsage(), l.counted)
	l.counted.Add(more)
	c.countTokens(more, l.parent == "")
}

// readAssistant reads a message of a model, or a part of one.
func (c *claude) readAssistant(l *thread, parent string, line *claudeLine) {
	m := &line.Message
	c.beginMessage(l, cutHead(m.ID, maxID))
	c.countUsage(l, m.Usage)
	if parent == "" && m.Stop != "" {
		c.stop = m.Stop
	}
	for _, b := range blocksOf(m.Content) {
		if c.confirmBlock(l, &b) {
			continue
		}
		switch {
		case b.Type == "text":
			c.emitText(parent, b.Text)
		case b.Type == "thinking" || b.Type == "redacted_thinking":
			c.emitThought(parent, b.Thinking)
		case isCall(b.Type):
			if id := c.callID(b.ID); c.streamedCall(id) == nil {
				c.emitCall(id, b.Name, parent, b.Input)
			}
		case isResult(b.Type): // of a tool that the model's service runs
			c.keepResults(parent, []claudeBlock{b})
		}
	}
}

func isCall(kind string) bool {
	return kind == "tool_use" || kind == "server_tool_use" || kind == "mcp_tool_use"
}

func isResult(kind string) bool {
	return kind == "tool_result" || strings.HasSuffix(kind, "_tool_result")
}

// readUser reads results of tools. Other blocks of user messages aren't the agent's
// output.
func (c *claude) readUser(parent string, line *claudeLine) {
	blocks := slices.DeleteFunc(blocksOf(line.Message.Content), func(b claudeBlock) bool { return !isResult(b.Type) })
	c.keepResults(parent, blocks)
}

func (c *claude) keepResults(parent string, blocks []claudeBlock) {
	if len(blocks) == 0 {
		return
	}
	if parent == "" {
		c.flushMessage() // the model's message may continue: tools run while it is streamed
	}
	var list []agent.ToolCall
	for _, b := range blocks {
		res := claudeResult(&b)
		res.id = c.callID(b.Call)
		c.dropThread(res.id)
		if b := c.streamedCall(res.id); b != nil {
			c.breakOff(b)
		}
		kept := c.emitResult(parent, res)
		if parent == "" {
			list = append(list, kept)
		}
	}
	c.addResults(list)
}

// dropThread removes the thread of a subagent whose call has its result.
func (c *claude) dropThread(id string) {
	for i, l := range c.threads {
		if i > 0 && l.parent == id {
			c.closeBlocks(l)
			c.threads = slices.Delete(c.threads, i, i+1)
			return
		}
	}
}

// claudeResult parses the result in a block: a text, blocks, or an object.
func claudeResult(b *claudeBlock) result {
	var r result
	var s string
	switch content := bytes.TrimSpace(b.Content); {
	case len(content) == 0 || json.Unmarshal(content, &s) == nil:
		r.output = plainText([]byte(s))
	case content[0] == '[':
		r.output, r.value = blocksResult(content)
	default:
		r.output, r.value = inputOf(content), b.Content
		var inner claudeBlock
		_ = decodeJSON(content, &inner) // a value that is no object has no type
		b.IsError = b.IsError || strings.HasSuffix(inner.Type, "_error")
	}
	if b.IsError {
		r.failed = cmp.Or(r.output, "failed")
	}
	return r
}

// blocksResult returns the text of blocks, and the blocks themselves if they contain
// more than text, since messages don't store images. It returns unknown blocks
// unchanged.
func blocksResult(content json.RawMessage) (output string, value json.RawMessage) {
	var texts []string
	for _, b := range blocksOf(content) {
		switch b.Type {
		case "text":
			texts = append(texts, plainText([]byte(b.Text)))
		case "image", "document":
			value = content
			texts = append(texts, "["+b.Type+"]")
		default:
			return inputOf(content), content
		}
	}
	return strings.Join(texts, "\n"), value
}

// blocksOf parses content: blocks, or a single text.
func blocksOf(content json.RawMessage) []claudeBlock {
	var s string
	if json.Unmarshal(content, &s) == nil && s != "" {
		return []claudeBlock{{Type: "text", Text: s}}
	}
	var raw []json.RawMessage
	if json.Unmarshal(content, &raw) != nil {
		return nil
	}
	blocks := make([]claudeBlock, 0, len(raw))
	for _, b := range raw {
		var block claudeBlock
		_ = decodeJSON(b, &block) // a value that is no object has no type
		blocks = append(blocks, block)
	}
	return blocks
}

// A claudeEnd is a line of type result.
type claudeEnd struct {
	Subtype  string       `json:"subtype"`
	IsError  bool         `json:"is_error"`
	Result   string       `json:"result"`
	Errors   []string     `json:"errors"`
	Stop     string       `json:"stop_reason"`
	Duration float64      `json:"duration_ms"`
	Cost     float64      `json:"total_cost_usd"`
	Usage    *claudeUsage `json:"usage"`
	Models   map[string]struct {
		Input   float64 `json:"inputTokens"`
		Output  float64 `json:"outputTokens"`
		Read    float64 `json:"cacheReadInputTokens"`
		Written float64 `json:"cacheCreationInputTokens"`
	} `json:"modelUsage"`
	Denials []struct {
		Tool string `json:"tool_name"`
	} `json:"permission_denials"`
}

// readEnd reads the line that ends a run. Its result repeats text that was already
// streamed, unless there was none.
func (c *claude) readEnd(whole []byte) {
	var end claudeEnd
	if decodeJSON(whole, &end) != nil {
		return // unreachable: Line has decoded it
	}
	for _, l := range c.threads {
		c.closeBlocks(l)
	}
	if c.text == "" && c.draft.body.Len() == 0 && end.Result != "" {
		c.emitText("", end.Result)
	}
	c.flushMessage()
	c.cost = max(0, end.Cost)
	c.duration = time.Duration(tokenCount(end.Duration)) * time.Millisecond
	c.stop = cmp.Or(end.Stop, c.stop)
	if u := end.totalUsage(); u != (agent.TokenUsage{}) {
		c.total = &u
	}
	for _, d := range end.Denials {
		if name := toolName(d.Tool); len(c.denied) < maxBlocks && !slices.Contains(c.denied, name) {
			c.denied = append(c.denied, name)
		}
	}
	c.reason, c.failure = end.endReason(c.stop)
}

// totalUsage returns the tokens of the run: the reported sum, else the sum over all
// models.
func (e *claudeEnd) totalUsage() (u agent.TokenUsage) {
	if e.Usage != nil {
		u = e.Usage.tokenUsage()
	}
	if u != (agent.TokenUsage{}) {
		return u
	}
	for _, m := range e.Models {
		u.Add(agent.TokenUsage{Input: tokenCount(m.Input), Output: tokenCount(m.Output), Cache: tokenCount(m.Read) + tokenCount(m.Written)})
	}
	return u
}

// endReason returns the reason of the run's end as the agent reports it, and its
// failure.
func (e *claudeEnd) endReason(stop string) (reason FinishReason, failure string) {
	if e.Subtype == "success" && !e.IsError || e.Subtype == "" && !e.IsError {
		return cmp.Or(claudeReason(stop), FinishStop), ""
	}
	said := cleanText(strings.TrimSpace(strings.Join(e.Errors, "; ")))
	switch e.Subtype {
	case "error_max_turns":
		return FinishLength, cmp.Or(said, "the agent had no more turns left")
	case "error_max_budget_usd":
		return FinishLength, cmp.Or(said, "the agent had no more money left")
	case "success", "":
		return FinishError, cutHead(cmp.Or(cleanText(strings.TrimSpace(e.Result)), said, "the agent failed"), maxError)
	}
	return FinishError, cutHead(cmp.Or(said, cleanText(strings.TrimSpace(e.Result)), "the agent failed: "+cleanText(e.Subtype)), maxError)
}

// claudeReason maps a model's stop reason; "" if it has given none.
func claudeReason(stop string) FinishReason {
	switch stop {
	case "":
		return ""
	case "end_turn", "stop_sequence":
		return FinishStop
	case "max_tokens", "model_context_window_exceeded":
		return FinishLength
	case "tool_use":
		return FinishToolCalls
	case "refusal":
		return FinishContentFilter
	}
	return FinishOther
}

// End implements Parser.
func (c *claude) End(exit atoll.Exit, stderr string, err error) Step {
	for _, l := range c.threads {
		c.closeBlocks(l)
	}
	if c.reason == "" && c.failure == "" {
		c.reason = claudeReason(c.stop)
	}
	return c.finishRun(exit, stderr, err)
}

var _ Parser = (*claude)(nil)
