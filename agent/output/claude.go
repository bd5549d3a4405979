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

// claude reads the stream-json of Claude Code. Its subagents speak in between, each in
// its lane; what they do is shown, and the result of the call that made them is kept.
type claude struct {
	run
	lanes     []*lane // the first is the agent itself
	stop      string  // why the model stopped last
	streaming int     // bytes of inputs that are not complete
}

// A lane is one who speaks: the agent, or one of its subagents.
type lane struct {
	parent  string           // the call that made the subagent; "" is the agent
	id      string           // of the model's message
	counted agent.TokenUsage // which that message has said
	blocks  []*streamed      // of that message
}

func newClaude() *claude { return &claude{lanes: []*lane{{}}} }

// A claudeLine is one line of any type.
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

	// Of usage_stats, what a former version printed.
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

func (u *claudeUsage) usage() agent.TokenUsage {
	return agent.TokenUsage{Input: tokens(u.Input), Output: tokens(u.Output), Cache: tokens(u.Written) + tokens(u.Read)}
}

// Line implements Parser.
func (c *claude) Line(b []byte) Step {
	if c.ended {
		return Step{}
	}
	b = valid(b)
	var l claudeLine
	if o := object(b); o == nil || decode(o, &l) != nil || l.Type == "" {
		c.line(b, true)
	} else {
		c.read(&l, o)
	}
	return c.take()
}

func (c *claude) read(l *claudeLine, whole []byte) {
	if l.Session != "" {
		c.session = cut(scrub(l.Session), maxID)
	}
	parent := ""
	if l.Parent != nil {
		parent = cut(scrub(*l.Parent), maxID)
	}
	switch l.Type {
	case "assistant":
		c.assistant(c.lane(parent), parent, l)
	case "user":
		c.user(parent, l)
	case "stream_event":
		c.streamEvent(c.lane(parent), parent, l.Event)
	case "result":
		c.over(whole)
	case "usage_stats":
		if c.reason == "" {
			c.total = &agent.TokenUsage{Input: tokens(l.Input), Output: tokens(l.Output), Cache: tokens(l.Cache)}
		}
	}
}

// lane returns that of a subagent, "" for the agent itself. When there are too many,
// they share one.
func (c *claude) lane(parent string) *lane {
	for _, l := range c.lanes {
		if l.parent == parent {
			return l
		}
	}
	if len(c.lanes) > maxLanes {
		return c.lanes[maxLanes]
	}
	l := &lane{parent: parent}
	c.lanes = append(c.lanes, l)
	return l
}

// next makes id the message that is being read in the lane.
func (c *claude) next(l *lane, id string) {
	if id != "" && id == l.id {
		return
	}
	c.closeBlocks(l)
	if l.parent == "" {
		c.flush()
	}
	*l = lane{parent: l.parent, id: id}
}

// countUsage counts what a message says that it used. It says so more than once.
func (c *claude) countUsage(l *lane, u *claudeUsage) {
	if u == nil {
		return
	}
	more := beyond(u.usage(), l.counted)
	l.counted.Add(more)
	c.count(more, l.parent == "")
}

// assistant reads a message of a model, or a part of one.
func (c *claude) assistant(l *lane, parent string, line *claudeLine) {
	m := &line.Message
	c.next(l, cut(m.ID, maxID))
	c.countUsage(l, m.Usage)
	if parent == "" && m.Stop != "" {
		c.stop = m.Stop
	}
	for _, b := range blocksOf(m.Content) {
		if c.confirm(l, &b) {
			continue
		}
		switch {
		case b.Type == "text":
			c.say(parent, b.Text)
		case b.Type == "thinking" || b.Type == "redacted_thinking":
			c.think(parent, b.Thinking)
		case isCall(b.Type):
			if id := c.known(b.ID); c.inStream(id) == nil {
				c.call(id, b.Name, parent, b.Input)
			}
		case isResult(b.Type): // of a tool which the model's service runs
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

// user reads what tools gave. Anything else in it is not the agent's.
func (c *claude) user(parent string, line *claudeLine) {
	blocks := slices.DeleteFunc(blocksOf(line.Message.Content), func(b claudeBlock) bool { return !isResult(b.Type) })
	c.keepResults(parent, blocks)
}

func (c *claude) keepResults(parent string, blocks []claudeBlock) {
	if len(blocks) == 0 {
		return
	}
	if parent == "" {
		c.flush() // blocks of the model's message may go on: tools run while it still speaks
	}
	var list []agent.ToolCall
	for _, b := range blocks {
		res := claudeResult(&b)
		res.id = c.known(b.Call)
		c.dropLane(res.id)
		if b := c.inStream(res.id); b != nil {
			c.breakOff(b)
		}
		kept := c.result(parent, res)
		if parent == "" {
			list = append(list, kept)
		}
	}
	c.results(list)
}

// dropLane forgets a subagent whose call has its result.
func (c *claude) dropLane(id string) {
	for i, l := range c.lanes {
		if i > 0 && l.parent == id {
			c.closeBlocks(l)
			c.lanes = slices.Delete(c.lanes, i, i+1)
			return
		}
	}
}

// claudeResult is what a block says that a tool gave: a text, blocks, or an object.
func claudeResult(b *claudeBlock) result {
	var r result
	var s string
	switch content := bytes.TrimSpace(b.Content); {
	case len(content) == 0 || json.Unmarshal(content, &s) == nil:
		r.output = plain([]byte(s))
	case content[0] == '[':
		r.output, r.value = blocksResult(content)
	default:
		r.output, r.value = inputOf(content), b.Content
		var inner claudeBlock
		_ = decode(content, &inner) // of what is no object nothing is known
		b.IsError = b.IsError || strings.HasSuffix(inner.Type, "_error")
	}
	if b.IsError {
		r.failed = cmp.Or(r.output, "failed")
	}
	return r
}

// blocksResult is the text of blocks, and the blocks if they are more than text: an
// image has no place among messages. Blocks that are not known are kept as they are.
func blocksResult(content json.RawMessage) (output string, value json.RawMessage) {
	var texts []string
	for _, b := range blocksOf(content) {
		switch b.Type {
		case "text":
			texts = append(texts, plain([]byte(b.Text)))
		case "image", "document":
			value = content
			texts = append(texts, "["+b.Type+"]")
		default:
			return inputOf(content), content
		}
	}
	return strings.Join(texts, "\n"), value
}

// blocksOf reads content: blocks, or one text.
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
		_ = decode(b, &block) // what is no object has no type
		blocks = append(blocks, block)
	}
	return blocks
}

// A claudeEnd is what the line of the type result says.
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

// over reads the line that ends a run. What it has as the result was said already,
// unless nothing was.
func (c *claude) over(whole []byte) {
	var end claudeEnd
	if decode(whole, &end) != nil {
		return // it was read before
	}
	for _, l := range c.lanes {
		c.closeBlocks(l)
	}
	if c.text == "" && c.draft.body.Len() == 0 && end.Result != "" {
		c.say("", end.Result)
	}
	c.flush()
	c.cost = max(0, end.Cost)
	c.duration = time.Duration(tokens(end.Duration)) * time.Millisecond
	c.stop = cmp.Or(end.Stop, c.stop)
	if u := end.usage(); u != (agent.TokenUsage{}) {
		c.total = &u
	}
	for _, d := range end.Denials {
		if name := toolName(d.Tool); len(c.denied) < maxBlocks && !slices.Contains(c.denied, name) {
			c.denied = append(c.denied, name)
		}
	}
	c.reason, c.failure = end.verdict(c.stop)
}

// usage is the sum of the run: what it says, else that of all models.
func (e *claudeEnd) usage() (u agent.TokenUsage) {
	if e.Usage != nil {
		u = e.Usage.usage()
	}
	if u != (agent.TokenUsage{}) {
		return u
	}
	for _, m := range e.Models {
		u.Add(agent.TokenUsage{Input: tokens(m.Input), Output: tokens(m.Output), Cache: tokens(m.Read) + tokens(m.Written)})
	}
	return u
}

// verdict is how the agent says that it ended.
func (e *claudeEnd) verdict(stop string) (reason FinishReason, failure string) {
	if e.Subtype == "success" && !e.IsError || e.Subtype == "" && !e.IsError {
		return cmp.Or(claudeReason(stop), FinishStop), ""
	}
	said := scrub(strings.TrimSpace(strings.Join(e.Errors, "; ")))
	switch e.Subtype {
	case "error_max_turns":
		return FinishLength, cmp.Or(said, "the agent had no more turns left")
	case "error_max_budget_usd":
		return FinishLength, cmp.Or(said, "the agent had no more money left")
	case "success", "":
		return FinishError, cut(cmp.Or(scrub(strings.TrimSpace(e.Result)), said, "the agent failed"), maxError)
	}
	return FinishError, cut(cmp.Or(said, scrub(strings.TrimSpace(e.Result)), "the agent failed: "+scrub(e.Subtype)), maxError)
}

// claudeReason is what a model's reason to stop stands for; "" if it has given none.
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
	for _, l := range c.lanes {
		c.closeBlocks(l)
	}
	if c.reason == "" && c.failure == "" {
		c.reason = claudeReason(c.stop)
	}
	return c.end(exit, stderr, err)
}

var _ Parser = (*claude)(nil)
