package testmodel

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
)

// messages is Anthropic's Messages API.
var messages = protocol{parse: parseMessages, answer: answerMessages, tokens: "input_tokens"}

func parseMessages(body []byte) (*request, error) {
	var in struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
		Tools  []struct {
			Name   string `json:"name"`
			Schema schema `json:"input_schema"`
		} `json:"tools"`
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	req := &request{model: in.Model, stream: in.Stream}
	for _, t := range in.Tools {
		req.tools = append(req.tools, tool{name: t.Name, schema: t.Schema})
	}
	for _, m := range in.Messages {
		if m.Role == "user" {
			req.addUserContent(m.Content)
		}
	}
	return req, nil
}

// addUserContent adds the prompts and the results in a message of the user.
func (r *request) addUserContent(content json.RawMessage) {
	var blocks []struct {
		Type    string          `json:"type"`
		Text    string          `json:"text"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(content, &blocks) != nil {
		r.prompts = append(r.prompts, textOf(content))
		return
	}
	for _, b := range blocks {
		switch b.Type {
		case "text":
			r.prompts = append(r.prompts, b.Text)
		case "tool_result":
			r.results = append(r.results, textOf(b.Content))
		}
	}
}

func answerMessages(w http.ResponseWriter, req *request, reply Reply, id int) error {
	c, err := req.callOf(reply)
	if err != nil {
		return err
	}
	blocks, stop := blocksOf(reply, c, id)
	message := object{
		"id": fmt.Sprintf("msg_%06d", id), "type": "message", "role": "assistant", "model": req.model,
		"content": blocks, "stop_reason": stop, "stop_sequence": nil, "usage": usageOf(reply),
	}
	if !req.stream {
		writeJSON(w, message)
		return nil
	}
	s := newStream(w)
	begin := maps.Clone(message)
	begin["content"], begin["stop_reason"] = []object{}, nil
	begin["usage"] = object{"input_tokens": 100, "output_tokens": 1, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 20}
	s.sendEvent("message_start", object{"message": begin})
	for i, block := range blocks {
		s.sendBlock(i, block)
	}
	s.sendEvent("message_delta", object{"delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": usageOf(reply)})
	s.sendEvent("message_stop", object{})
	return nil
}

// usageOf returns the usage of a reply, which depends only on the reply.
func usageOf(reply Reply) object {
	return object{
		"input_tokens": 100, "output_tokens": outputTokens(reply),
		"cache_creation_input_tokens": 10, "cache_read_input_tokens": 20,
	}
}

// blocksOf returns the content blocks of a reply and its stop reason.
func blocksOf(reply Reply, c *call, id int) (blocks []object, stop string) {
	if reply.Think != "" {
		blocks = append(blocks, object{"type": "thinking", "thinking": reply.Think, "signature": "c2lnbmVk"})
	}
	if reply.Text != "" {
		blocks = append(blocks, object{"type": "text", "text": reply.Text})
	}
	if c == nil {
		return blocks, "end_turn"
	}
	return append(blocks, object{"type": "tool_use", "id": fmt.Sprintf("toolu_%06d", id), "name": c.tool.name, "input": c.input}), "tool_use"
}

// sendBlock streams one block of content.
func (s *stream) sendBlock(i int, block object) {
	start, kind, field, whole := maps.Clone(block), "", "", ""
	switch block["type"] {
	case "text":
		kind, field, whole, start["text"] = "text_delta", "text", block["text"].(string), ""
	case "thinking":
		kind, field, whole = "thinking_delta", "thinking", block["thinking"].(string)
		start["thinking"], start["signature"] = "", ""
	case "tool_use":
		c := call{input: block["input"].(object)}
		kind, field, whole, start["input"] = "input_json_delta", "partial_json", c.inputText(), object{}
	}
	s.sendEvent("content_block_start", object{"index": i, "content_block": start})
	for _, chunk := range splitChunks(whole) {
		s.sendEvent("content_block_delta", object{"index": i, "delta": object{"type": kind, field: chunk}})
	}
	if kind == "thinking_delta" {
		s.sendEvent("content_block_delta", object{"index": i, "delta": object{"type": "signature_delta", "signature": block["signature"]}})
	}
	s.sendEvent("content_block_stop", object{"index": i})
}
