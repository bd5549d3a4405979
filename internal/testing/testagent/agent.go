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

// What each message uses and costs.
const (
	inputTokens   = 100
	readTokens    = 20
	writtenTokens = 10
	cost          = 0.001
)

// An agent is one run.
type agent struct {
	session *session
	out     *bufio.Writer
	quiet   bool // prints the last text only
	held    bool // does not flush
	began   time.Time
	calls   int
	sent    int    // messages
	given   int    // tokens
	last    string // text
	err     error  // the first of writing
}

// printLine prints one line, at once.
func (a *agent) printLine(line object) {
	if a.quiet || a.err != nil {
		return
	}
	line["session_id"] = a.session.id
	data, err := json.Marshal(line)
	if err != nil {
		panic(err) // strings and numbers
	}
	a.printRaw(string(data) + "\n")
}

// printRaw prints what it is given.
func (a *agent) printRaw(text string) {
	if _, err := a.out.WriteString(text); err != nil {
		a.err = err
	}
	if a.held {
		return
	}
	if err := a.out.Flush(); err != nil {
		a.err = err
	}
}

// recordLine writes a line into the session's file.
func (a *agent) recordLine(line object) {
	if err := a.session.writeLine(line); err != nil && a.err == nil {
		a.err = err
	}
}

func (a *agent) init() {
	dir, _ := os.Getwd() // "" where there is none
	a.printLine(object{
		"type": "system", "subtype": "init", "cwd": dir, "model": "testagent", "tools": []string{"Bash"},
		"mcp_servers": []string{}, "permissionMode": "bypassPermissions", "apiKeySource": "none",
	})
}

// usageOf is that of a message which gives so many tokens.
func usageOf(given int) object {
	return object{
		"input_tokens": inputTokens, "cache_read_input_tokens": readTokens,
		"cache_creation_input_tokens": writtenTokens, "output_tokens": given,
	}
}

// nextMessage counts a message, and returns its id and the tokens that it gives.
func (a *agent) nextMessage(text string) (id string, given int) {
	a.sent++
	given = (len(text) + 3) / 4
	a.given += given
	return fmt.Sprintf("msg_%s_%d", a.session.id[:8], a.session.messages+a.sent), given
}

// sendMessage prints a message of one block, and keeps it.
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
	a.last = text
	a.sendMessage(object{"type": "text", "text": text}, text)
}

// sayPartial says a text in pieces, and then as a whole, as claude does.
func (a *agent) sayPartial(text string) {
	a.last = text
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

// floodTexts says n texts, and does not keep them.
func (a *agent) floodTexts(ctx context.Context, n int) {
	a.held = true
	for i := range n {
		if ctx.Err() != nil || a.err != nil {
			break
		}
		a.last = fmt.Sprintf("flood %d", i+1)
		id, given := a.nextMessage(a.last)
		a.printLine(object{"type": "assistant", "parent_tool_use_id": nil, "message": object{
			"id": id, "role": "assistant", "content": []object{{"type": "text", "text": a.last}}, "usage": usageOf(given),
		}})
	}
	a.held = false
	a.printRaw("")
}

// failTurn ends the turn as after an error of the API, and returns the exit code.
func (a *agent) failTurn(message string) int {
	a.sayText("API Error: " + message)
	a.printResult("API Error: " + message)
	return 1
}

// printResult prints the last line.
func (a *agent) printResult(failure string) {
	if a.quiet {
		a.printRaw(a.last + "\n")
		return
	}
	text := a.last
	if failure != "" {
		text = failure
	}
	a.printLine(object{
		"type": "result", "subtype": "success", "is_error": failure != "", "result": text, "stop_reason": "end_turn",
		"duration_ms": time.Since(a.began).Milliseconds(), "duration_api_ms": 0, "num_turns": a.sent,
		"total_cost_usd": cost * float64(a.sent), "permission_denials": []object{}, "usage": object{
			"input_tokens": inputTokens * a.sent, "cache_read_input_tokens": readTokens * a.sent,
			"cache_creation_input_tokens": writtenTokens * a.sent, "output_tokens": a.given,
		},
	})
}
