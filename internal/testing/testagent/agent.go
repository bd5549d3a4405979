package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"
	"unicode/utf8"
)

type object map[string]any

// Tokens and USD of each message.
const (
	inputTokens      = 100
	cacheReadTokens  = 20
	cacheWriteTokens = 10
	cost             = 0.001
)

// An agent is one run of the agent.
type agent struct {
	session      *session
	out          *bufio.Writer
	quiet        bool // prints only the last text
	buffered     bool // printRaw does not flush
	started      time.Time
	calls        int
	messages     int    // number sent
	outputTokens int    // total of the messages
	lastText     string // of the last message
	err          error  // the first write error
}

// printLine prints one line of JSON.
func (a *agent) printLine(line object) {
	if a.quiet || a.err != nil {
		return
	}
	line["session_id"] = a.session.id
	data, err := json.Marshal(line)
	if err != nil {
		panic(err) // impossible for strings and numbers
	}
	a.printRaw(string(data) + "\n")
}

// printRaw prints text, and flushes it unless buffered is set.
func (a *agent) printRaw(text string) {
	if _, err := a.out.WriteString(text); err != nil {
		a.err = err
	}
	if a.buffered {
		return
	}
	if err := a.out.Flush(); err != nil {
		a.err = err
	}
}

// recordLine appends a line to the session's file.
func (a *agent) recordLine(line object) {
	if err := a.session.writeLine(line); err != nil && a.err == nil {
		a.err = err
	}
}

func (a *agent) printInit() {
	dir, _ := os.Getwd() // "" if it was removed
	a.printLine(object{
		"type": "system", "subtype": "init", "cwd": dir, "model": "testagent", "tools": []string{"Bash"},
		"mcp_servers": []string{}, "permissionMode": "bypassPermissions", "apiKeySource": "none",
	})
}

// usageOf returns the usage of a message with so many output tokens.
func usageOf(given int) object {
	return object{
		"input_tokens": inputTokens, "cache_read_input_tokens": cacheReadTokens,
		"cache_creation_input_tokens": cacheWriteTokens, "output_tokens": given,
	}
}

// nextMessage counts a message and returns its id and its output tokens.
func (a *agent) nextMessage(text string) (id string, given int) {
	a.messages++
	given = (len(text) + 3) / 4
	a.outputTokens += given
	return fmt.Sprintf("msg_%s_%d", a.session.id[:8], a.session.messages+a.messages), given
}

// sendMessage prints and records a message with one block.
func (a *agent) sendMessage(block object, text string) {
	id, given := a.nextMessage(text)
	a.printMessage(id, block, given)
}

func (a *agent) printMessage(id string, block object, given int) {
	line := object{"type": "assistant", "parent_tool_use_id": nil, "message": object{
		"id": id, "type": "message", "role": "assistant", "model": "testagent", "content": []object{block},
		"stop_reason": nil, "stop_sequence": nil, "usage": usageOf(given),
	}}
	a.printLine(line)
	a.recordLine(line)
}

func (a *agent) sayText(text string) {
	a.lastText = text
	a.sendMessage(object{"type": "text", "text": text}, text)
}

// sayPartial prints a text in pieces and then as a whole, like claude.
func (a *agent) sayPartial(text string) {
	a.lastText = text
	id, given := a.nextMessage(text)
	event := func(e object) {
		a.printLine(object{"type": "stream_event", "parent_tool_use_id": nil, "event": e})
	}
	event(object{"type": "message_start", "message": object{"id": id, "type": "message", "role": "assistant", "content": []object{}, "usage": usageOf(1)}})
	event(object{"type": "content_block_start", "index": 0, "content_block": object{"type": "text", "text": ""}})
	for rest := text; rest != ""; {
		n := min(8, len(rest))
		for n < len(rest) && !utf8.RuneStart(rest[n]) {
			n--
		}
		event(object{"type": "content_block_delta", "index": 0, "delta": object{"type": "text_delta", "text": rest[:n]}})
		rest = rest[n:]
	}
	a.printMessage(id, object{"type": "text", "text": text}, given)
	event(object{"type": "content_block_stop", "index": 0})
	event(object{"type": "message_delta", "delta": object{"stop_reason": "end_turn", "stop_sequence": nil}, "usage": usageOf(given)})
	event(object{"type": "message_stop"})
}

// floodTexts prints n texts without recording them.
func (a *agent) floodTexts(ctx context.Context, n int) {
	a.buffered = true
	for i := range n {
		if ctx.Err() != nil || a.err != nil {
			break
		}
		a.lastText = fmt.Sprintf("flood %d", i+1)
		id, given := a.nextMessage(a.lastText)
		a.printLine(object{"type": "assistant", "parent_tool_use_id": nil, "message": object{
			"id": id, "role": "assistant", "content": []object{{"type": "text", "text": a.lastText}}, "usage": usageOf(given),
		}})
	}
	a.buffered = false
	a.printRaw("")
}

// failTurn ends the turn like an API error, and returns the exit code.
func (a *agent) failTurn(message string) int {
	a.sayText("API Error: " + message)
	a.printResult("API Error: " + message)
	return 1
}

// printResult prints the last line.
func (a *agent) printResult(failure string) {
	if a.quiet {
		a.printRaw(a.lastText + "\n")
		return
	}
	text := a.lastText
	if failure != "" {
		text = failure
	}
	a.printLine(object{
		"type": "result", "subtype": "success", "is_error": failure != "", "result": text, "stop_reason": "end_turn",
		"duration_ms": time.Since(a.started).Milliseconds(), "duration_api_ms": 0, "num_turns": a.messages,
		"total_cost_usd": cost * float64(a.messages), "permission_denials": []object{}, "usage": object{
			"input_tokens": inputTokens * a.messages, "cache_read_input_tokens": cacheReadTokens * a.messages,
			"cache_creation_input_tokens": cacheWriteTokens * a.messages, "output_tokens": a.outputTokens,
		},
	})
}
