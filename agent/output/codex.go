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

// codex reads the JSON lines of codex exec. What it does are items, which begin, change
// and end; tools are called as their items are.
type codex struct {
	run
	items []*codexText // texts that have begun
	trys  string       // what it said last of what went wrong, and may have been overcome
}

// A codexText is a text or a thought that has not ended.
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
		Cached float64 `json:"cached_input_tokens"` // which are part of Input
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
	b = valid(b)
	var l codexLine
	if o := object(b); o == nil || decode(o, &l) != nil || l.Type == "" {
		c.line(b, true)
	} else {
		c.read(&l)
	}
	return c.take()
}

func (c *codex) read(l *codexLine) {
	switch l.Type {
	case "thread.started":
		c.session = cut(scrub(l.Thread), maxID)
	case "turn.started":
		c.reason, c.failure = "", ""
	case "item.started", "item.updated":
		c.item(&l.Item, false)
	case "item.completed":
		c.item(&l.Item, true)
	case "turn.completed":
		if u := l.Usage; u != nil {
			cached := tokens(u.Cached)
			c.count(beyond(agent.TokenUsage{Input: max(0, tokens(u.Input)-cached), Output: tokens(u.Output), Cache: cached}, c.sum), true)
		}
		c.closeTexts()
		c.flush()
		c.reason = FinishStop
	case "turn.failed":
		c.closeTexts()
		c.flush()
		c.reason = ""
		c.failure = cut(cmp.Or(scrub(l.Error.Message), c.trys, "the agent failed"), maxError)
	case "error": // also of what it tries again
		c.trys = cut(scrub(l.Message), maxError)
	}
}

// item reads what there is of an item.
func (c *codex) item(i *codexItem, ended bool) {
	i.ID = cut(scrub(i.ID), maxID)
	switch i.Type {
	case "agent_message", "plan":
		c.text(i, TextStart, ended)
	case "reasoning":
		c.text(i, ReasoningStart, ended)
	case "error": // a warning
		c.trys = cut(scrub(i.Message), maxError)
		if ended {
			c.think("", i.Message)
		}
	case "command_execution", "file_change", "mcp_tool_call", "web_search", "todo_list", "collab_tool_call":
		c.tool(i, ended)
	}
}

// text shows what is new of a text or a thought. One that was changed, and not only
// continued, is shown again.
func (c *codex) text(i *codexItem, kind EventType, ended bool) {
	at := slices.IndexFunc(c.items, func(t *codexText) bool { return t.item == i.ID && t.kind == kind })
	text := scrub(i.Text)
	if at < 0 && ended {
		if kind == TextStart {
			c.say("", text)
		} else {
			c.think("", text)
		}
		return
	}
	if at >= 0 && !strings.HasPrefix(text, c.items[at].shown) {
		c.closeText(at)
		c.other("")
		at = -1
	}
	if at < 0 {
		if len(c.items) >= maxTexts {
			c.closeText(0)
		}
		c.items = append(c.items, &codexText{item: i.ID, kind: kind, id: c.begin(kind, "")})
		at = len(c.items) - 1
	}
	c.grow(c.items[at], text)
	if ended {
		c.closeText(at)
	}
}

// grow shows the rest of a text.
func (c *codex) grow(t *codexText, text string) {
	more := text[len(t.shown):]
	t.shown = text
	if t.kind == ReasoningStart {
		c.delta(ReasoningDelta, t.id, "", more)
		c.other("")
		return
	}
	c.delta(TextDelta, t.id, "", more)
	if more != "" {
		c.draft.write(textPart, more)
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
	c.emit(Event{Type: end, ID: t.id})
}

func (c *codex) closeTexts() {
	for len(c.items) > 0 {
		c.closeText(0)
	}
}

// tool reads the call of a tool, and what it gave.
func (c *codex) tool(i *codexItem, ended bool) {
	id := c.known(i.ID)
	c.call(id, i.name(), "", i.input())
	if !ended {
		return
	}
	res := i.result()
	res.id, res.name = id, i.name()
	c.flush()
	c.results([]agent.ToolCall{c.result("", res)})
}

// name is what the tool of an item is called.
func (i *codexItem) name() string {
	if i.Type == "mcp_tool_call" {
		return "mcp__" + i.Server + "__" + i.Tool
	}
	if i.Type == "collab_tool_call" && i.Tool != "" {
		return i.Tool
	}
	return i.Type
}

// input is what the tool of an item was given.
func (i *codexItem) input() json.RawMessage {
	field, value := "", json.RawMessage(nil)
	switch i.Type {
	case "mcp_tool_call":
		return i.Arguments
	case "command_execution":
		field, value = "command", json.RawMessage(quote(i.Command))
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

// result is what the tool of an item gave.
func (i *codexItem) result() result {
	bad := i.Status == "failed" || i.Status == "declined"
	switch i.Type {
	case "command_execution":
		r := result{output: plain([]byte(i.Output))}
		if bad || i.Exit != nil && *i.Exit != 0 {
			r.failed = cmp.Or(strings.TrimSpace(r.output), scrub(i.Status))
			if i.Exit != nil {
				r.failed = strings.TrimSpace("exited with code " + strconv.Itoa(*i.Exit) + "\n" + r.output)
			}
		}
		return r
	case "mcp_tool_call":
		if message := scrub(i.Error.Message); message != "" || bad {
			return result{failed: cmp.Or(message, "failed")}
		}
		return claudeResult(&claudeBlock{Content: i.Result.Content}) // both have the blocks of MCP
	case "todo_list":
		return result{output: inputOf(i.Items), value: json.RawMessage(inputOf(i.Items))}
	}
	if bad {
		return result{failed: cmp.Or(scrub(i.Error.Message), i.Status)}
	}
	return result{output: cmp.Or(scrub(cut(i.Status, maxID)), agent.ToolCompleted)}
}

// End implements Parser.
func (c *codex) End(exit atoll.Exit, stderr string, err error) Step {
	c.closeTexts()
	if c.reason == "" && c.failure == "" && !exit.Success() {
		c.failure = c.trys
	}
	return c.end(exit, stderr, err)
}

var _ Parser = (*codex)(nil)
