package output

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

// codex parses the JSON lines of codex exec. Its output consists of items, which begin,
// change and end; those of tools become tool calls.
type codex struct {
	run
	items     []*codexText // texts that have begun
	lastError string       // the last error it reported, which it may have recovered from
}

// A codexText is an unfinished text or thought.
type codexText struct {
	item  string
	kind  EventType
	id    string
	shown string
}

func newCodex() *codex { return &codex{} }

type codexLine struct {
	Type    string    `json:"type"`
	Thread  string    `json:"thread_id"`
	Message string    `json:"message"`
	Item    codexItem `json:"item"`
	Error   struct {
		Message string `json:"message"`
	} `json:"error"`
	Usage *struct {
		Input  float64 `json:"input_tokens"`
		Cached float64 `json:"cached_input_tokens"` // included in Input
		Output float64 `json:"output_tokens"`
	} `json:"usage"`
}

// A codexItem has the fields of all types of items.
type codexItem struct {
	ID      string `json:"id"`
	Type    string `json:"type"`
	Text    string `json:"text"`
	Message string `json:"message"`
	Status  string `json:"status"`

	Command string `json:"command"`
	Output  string `json:"aggregated_output"`
	Exit    *int   `json:"exit_code"`

	Changes json.RawMessage `json:"changes"`
	Query   json.RawMessage `json:"query"`
	Items   json.RawMessage `json:"items"`
	Prompt  json.RawMessage `json:"prompt"`

	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	Result    struct {
		Content json.RawMessage `json:"content"`
	} `json:"result"`
	Error struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Line implements Parser.
func (c *codex) Line(b []byte) Step {
	if c.ended {
		return Step{}
	}
	b = toValidUTF8(b)
	var l codexLine
	if o := trimObject(b); o == nil || decodeJSON(o, &l) != nil || l.Type == "" {
		c.emitLine(b, true)
	} else {
		c.readLine(&l)
	}
	return c.takeStep()
}

func (c *codex) readLine(l *codexLine) {
	switch l.Type {
	case "thread.started":
		c.session = cutHead(cleanText(l.Thread), maxID)
	case "turn.started":
		c.reason, c.failure = "", ""
	case "item.started", "item.updated":
		c.readItem(&l.Item, false)
	case "item.completed":
		c.readItem(&l.Item, true)
	case "turn.completed":
		if u := l.Usage; u != nil {
			cached := tokenCount(u.Cached)
			c.countTokens(excessTokens(agent.TokenUsage{Input: max(0, tokenCount(u.Input)-cached), Output: tokenCount(u.Output), Cache: cached}, c.sum), true)
		}
		c.closeTexts()
		c.flushMessage()
		c.reason = FinishStop
	case "turn.failed":
		c.closeTexts()
		c.flushMessage()
		c.reason = ""
		c.failure = cutHead(cmp.Or(cleanText(l.Error.Message), c.lastError, "the agent failed"), maxError)
	case "error": // also for errors it recovers from
		c.lastError = cutHead(cleanText(l.Message), maxError)
	}
}

// readItem reads the current state of an item.
func (c *codex) readItem(i *codexItem, ended bool) {
	i.ID = cutHead(cleanText(i.ID), maxID)
	switch i.Type {
	case "agent_message", "plan":
		c.readText(i, TextStart, ended)
	case "reasoning":
		c.readText(i, ReasoningStart, ended)
	case "error": // a warning
		c.lastError = cutHead(cleanText(i.Message), maxError)
		if ended {
			c.emitThought("", i.Message)
		}
	case "command_execution", "file_change", "mcp_tool_call", "web_search", "todo_list", "collab_tool_call":
		c.readTool(i, ended)
	}
}

// readText emits the new part of a text or a thought. If the text was changed, not only
// continued, it is emitted again.
func (c *codex) readText(i *codexItem, kind EventType, ended bool) {
	at := slices.IndexFunc(c.items, func(t *codexText) bool { return t.item == i.ID && t.kind == kind })
	text := cleanText(i.Text)
	if at < 0 && ended {
		if kind == TextStart {
			c.emitText("", text)
		} else {
			c.emitThought("", text)
		}
		return
	}
	if at >= 0 && !strings.HasPrefix(text, c.items[at].shown) {
		c.closeText(at)
		c.separateText("")
		at = -1
	}
	if at < 0 {
		if len(c.items) >= maxTexts {
			c.closeText(0)
		}
		c.items = append(c.items, &codexText{item: i.ID, kind: kind, id: c.beginText(kind, "")})
		at = len(c.items) - 1
	}
	c.showRest(c.items[at], text)
	if ended {
		c.closeText(at)
	}
}

// showRest emits the rest of a text.
func (c *codex) showRest(t *codexText, text string) {
	more := text[len(t.shown):]
	t.shown = text
	if t.kind == ReasoningStart {
		c.emitDelta(ReasoningDelta, t.id, "", more)
		c.separateText("")
		return
	}
	c.emitDelta(TextDelta, t.id, "", more)
	if more != "" {
		c.draft.writePart(textPart, more)
	}
}

func (c *codex) closeText(at int) {
	t := c.items[at]
	c.items = slices.Delete(c.items, at, at+1)
	c.closeRaw()
	end := TextEnd
	if t.kind == ReasoningStart {
		end = ReasoningEnd
	}
	c.emitEvent(Event{Type: end, ID: t.id})
}

func (c *codex) closeTexts() {
	for len(c.items) > 0 {
		c.closeText(0)
	}
}

// readTool reads the call of a tool, and its result.
func (c *codex) readTool(i *codexItem, ended bool) {
	id := c.callID(i.ID)
	c.emitCall(id, i.toolName(), "", i.toolInput())
	if !ended {
		return
	}
	res := i.toolResult()
	res.id, res.name = id, i.toolName()
	c.flushMessage()
	c.addResults([]agent.ToolCall{c.emitResult("", res)})
}

// toolName returns the name of the item's tool.
func (i *codexItem) toolName() string {
	if i.Type == "mcp_tool_call" {
		return "mcp__" + i.Server + "__" + i.Tool
	}
	if i.Type == "collab_tool_call" && i.Tool != "" {
		return i.Tool
	}
	return i.Type
}

// toolInput returns the input of the item's tool.
func (i *codexItem) toolInput() json.RawMessage {
	field, value := "", json.RawMessage(nil)
	switch i.Type {
	case "mcp_tool_call":
		return i.Arguments
	case "command_execution":
		field, value = "command", json.RawMessage(quoteJSON(i.Command))
	case "file_change":
		field, value = "changes", i.Changes
	case "web_search":
		field, value = "query", i.Query
	case "todo_list":
		field, value = "items", i.Items
	case "collab_tool_call":
		field, value = "prompt", i.Prompt
	}
	if value == nil {
		return nil
	}
	return slices.Concat([]byte(`{"`+field+`":`), value, []byte("}"))
}

// toolResult returns the result of the item's tool.
func (i *codexItem) toolResult() result {
	bad := i.Status == "failed" || i.Status == "declined"
	switch i.Type {
	case "command_execution":
		r := result{output: plainText([]byte(i.Output))}
		if bad || i.Exit != nil && *i.Exit != 0 {
			r.failed = cmp.Or(strings.TrimSpace(r.output), cleanText(i.Status))
			if i.Exit != nil {
				r.failed = strings.TrimSpace("exited with code " + strconv.Itoa(*i.Exit) + "\n" + r.output)
			}
		}
		return r
	case "mcp_tool_call":
		if message := cleanText(i.Error.Message); message != "" || bad {
			return result{failed: cmp.Or(message, "failed")}
		}
		return claudeResult(&claudeBlock{Content: i.Result.Content}) // both use the blocks of MCP
	case "todo_list":
		return result{output: inputOf(i.Items), value: json.RawMessage(inputOf(i.Items))}
	}
	if bad {
		return result{failed: cmp.Or(cleanText(i.Error.Message), i.Status)}
	}
	return result{output: cmp.Or(cleanText(cutHead(i.Status, maxID)), agent.ToolCompleted)}
}

// End implements Parser.
func (c *codex) End(exit atoll.Exit, stderr string, err error) Step {
	c.closeTexts()
	if c.reason == "" && c.failure == "" && !exit.Success() {
		c.failure = c.lastError
	}
	return c.finishRun(exit, stderr, err)
}

var _ Parser = (*codex)(nil)
