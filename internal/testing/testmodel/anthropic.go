package testmodel

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// messages answers as Anthropic's Messages API does.
func messages(w http.ResponseWriter, req *request, reply Reply, id int) {
	blocks, stop, err := blocksOf(req, reply, id)
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	message := object{
		"id": fmt.Sprintf("msg_%06d", id), "type": "message", "role": "assistant", "model": req.Model,
		"content": blocks, "stop_reason": stop, "stop_sequence": nil, "usage": usage(reply),
	}
	if !req.Stream {
		answer(w, message)
		return
	}
	s := newStream(w)
	begin := object{}
	for k, v := range message {
		begin[k] = v
	}
	begin["content"], begin["stop_reason"] = []object{}, nil
	begin["usage"] = object{"input_tokens": 100, "output_tokens": 1, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 20}
	s.send("message_start", object{"message": begin})
	for i, block := range blocks {
		s.block(i, block)
	}
	s.send("message_delta", object{"delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": usage(reply)})
	s.send("message_stop", object{})
}

// usage is the same for the same reply.
func usage(reply Reply) object {
	return object{
		"input_tokens": 100, "output_tokens": tokens(reply.Think + reply.Text + reply.Run),
		"cache_creation_input_tokens": 10, "cache_read_input_tokens": 20,
	}
}

// blocksOf is the content of a reply, and why it ends.
func blocksOf(req *request, reply Reply, id int) (blocks []object, stop string, err error) {
	if reply.Think != "" {
		blocks = append(blocks, object{"type": "thinking", "thinking": reply.Think, "signature": "c2lnbmVk"})
	}
	if reply.Text != "" {
		blocks = append(blocks, object{"type": "text", "text": reply.Text})
	}
	if reply.Run == "" {
		return blocks, "end_turn", nil
	}
	name := req.tool("Bash")
	if name == "" {
		return nil, "", fmt.Errorf("testmodel: the agent offers no tool for %q", reply.Run)
	}
	input := object{"command": reply.Run, "description": "runs it"}
	return append(blocks, object{"type": "tool_use", "id": fmt.Sprintf("toolu_%06d", id), "name": name, "input": input}), "tool_use", nil
}

// block streams one block of content.
func (s *stream) block(i int, block object) {
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
			panic(err) // strings
		}
		kind, field, whole, start["input"] = "input_json_delta", "partial_json", string(input), object{}
	}
	s.send("content_block_start", object{"index": i, "content_block": start})
	for _, chunk := range chunks(whole) {
		s.send("content_block_delta", object{"index": i, "delta": object{"type": kind, field: chunk}})
	}
	if kind == "thinking_delta" {
		s.send("content_block_delta", object{"index": i, "delta": object{"type": "signature_delta", "signature": block["signature"]}})
	}
	s.send("content_block_stop", object{"index": i})
}
