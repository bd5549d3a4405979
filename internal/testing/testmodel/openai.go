package testmodel

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// serveResponses answers like OpenAI's Responses API. It always streams, since codex requests nothing
// else.
func serveResponses(w http.ResponseWriter, req *request, reply Reply, id int) {
	items, err := itemsOf(req, reply, id)
	if err != nil {
		writeError(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	s := newStream(w)
	response := fmt.Sprintf("resp_%06d", id)
	s.sendNumbered("response.created", object{"response": object{"id": response}})
	for i, item := range items {
		s.sendNumbered("response.output_item.added", object{"output_index": i, "item": item})
		if item["type"] == "message" {
			for _, chunk := range splitChunks(reply.Text) {
				s.sendNumbered("response.output_text.delta", object{"output_index": i, "content_index": 0, "item_id": item["id"], "delta": chunk})
			}
		}
		s.sendNumbered("response.output_item.done", object{"output_index": i, "item": item})
	}
	out := countTokens(reply.Think + reply.Text + reply.Run)
	s.sendNumbered("response.completed", object{"response": object{"id": response, "usage": object{
		"input_tokens": 120, "input_tokens_details": object{"cached_tokens": 20},
		"output_tokens": out, "output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": 120 + out,
	}}})
}

// sendNumbered sends one event with its sequence number.
func (s *stream) sendNumbered(kind string, fields object) {
	fields["sequence_number"] = s.n
	s.n++
	s.sendEvent(kind, fields)
}

// itemsOf returns the output items of a reply.
func itemsOf(req *request, reply Reply, id int) (items []object, err error) {
	if reply.Think != "" {
		items = append(items, object{
			"type": "reasoning", "id": fmt.Sprintf("rs_%06d", id),
			"summary": []object{{"type": "summary_text", "text": reply.Think}},
		})
	}
	if reply.Text != "" {
		items = append(items, object{
			"type": "message", "id": fmt.Sprintf("item_%06d", id), "role": "assistant",
			"content": []object{{"type": "output_text", "text": reply.Text}},
		})
	}
	if reply.Run == "" {
		return items, nil
	}
	// The tool's name depends on codex's version and on the model that it asks for.
	name := req.findTool("exec_command", "shell_command", "shell")
	arguments := object{}
	switch name {
	case "exec_command":
		arguments["cmd"] = reply.Run
	case "shell_command":
		arguments["command"] = reply.Run
	case "shell":
		arguments["command"] = []string{"sh", "-c", reply.Run}
	default:
		return nil, fmt.Errorf("testmodel: the agent offers no tool for %q", reply.Run)
	}
	text, err := json.Marshal(arguments)
	if err != nil {
		return nil, err
	}
	return append(items, object{
		"type": "function_call", "id": fmt.Sprintf("fc_%06d", id), "call_id": fmt.Sprintf("call_%06d", id),
		"name": name, "arguments": string(text),
	}), nil
}
