package testmodel

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// serveMessages answers like Anthropic's Messages API.
func serveMessages(w http.ResponseWriter, req *request, reply Reply, id int) {
	blocks, stop, err := blocksOf(req, reply, id)
	if err != nil {
		writeError(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	message := object{
		"id": fmt.Sprintf("msg_%06d", id), "type": "message", "role": "assistant", "model": req.Model,
		"content": blocks, "stop_reason": stop, "stop_sequence": nil, "usage": usageOf(reply),
	}
	if !req.Stream {
		writeJSON(w, message)
		return
	}
	s := newStream(w)
	begin := object{}
	for k, v := range message {
		begin[k] = v
	}
	begin["content"], begin["stop_reason"] = []object{}, nil
	begin["usage"] = object{"input_tokens": 100, "output_tokens": 1, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 20}
	s.sendEvent("message_start", object{"message": begin})
	for i, block := range blocks {
		s.sendBlock(i, block)
	}
	s.sendEvent("message_delta", object{"delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": usageOf(reply)})
	s.sendEvent("message_stop", object{})
}

// usageOf returns the usage of a reply, which depends only on the reply.
func usageOf(reply Reply) object {
	return object{
		"input_tokens": 100, "output_tokens": countTokens(reply.Think + reply.Text + reply.Run),
		"cache_creation_input_tokens": 10, "cache_read_input_tokens": 20,
	}
}

// blocksOf returns the content blocks of a reply and its stop reason.
func blocksOf(req *request, reply Reply, id int) (blocks []object, stop string, err error) {
	if reply.Think != "" {
		blocks = append(blocks, object{"type": "thinking", "thinking": reply.Think, "signature": "c2lnbmVk"})
	}
	if reply.Text != "" {
		blocks = append(blocks, object{"type": "text", "text": reply.Text})
	}
	wanted, input := reply.Call, object(reply.Input)
	switch {
	case reply.Run != "":
		wanted, input = "Bash", object{"command": reply.Run, "description": "runs it"}
	case wanted == "":
		return blocks, "end_turn", nil
	}
	name := req.findTool(wanted)
	if name == "" {
		return nil, "", fmt.Errorf("testmodel: the agent offers no tool %s", wanted)
	}
	return append(blocks, object{"type": "tool_use", "id": fmt.Sprintf("toolu_%06d", id), "name": name, "input": input}), "tool_use", nil
}

// sendBlock streams one block of content.
func (s *stream) sendBlock(i int, block object) {
	start, field, whole := object{}, "", ""
	for k, v := range block {
		start[k] = v
	}
	kind := ""
	switch block["type"] {
	case "text":
		kind, field, whole, start["text"] = "text_delta", "text", block["text"].(string), ""
	case "thinking":
		kind, field, whole = "thinking_delta", "thinking", block["thinking"].(string)
		start["thinking"], start["signature"] = "", ""
	case "tool_use":
		input, err := json.Marshal(block["input"])
		if err != nil {
			panic(err) // impossible for strings
		}
		kind, field, whole, start["input"] = "input_json_delta", "partial_json", string(input), object{}
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
