package testmodel

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
)

// responses is OpenAI's Responses API. It always streams, since codex and opencode request nothing else.
var responses = protocol{parse: parseResponses, answer: answerResponses}

func parseResponses(body []byte) (*request, error) {
	var in struct {
		Model string          `json:"model"`
		Tools []responseTool  `json:"tools"`
		Input json.RawMessage `json:"input"`
		Text  struct {
			Format struct {
				Schema *schema `json:"schema"`
			} `json:"format"`
		} `json:"text"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	req := &request{model: in.Model, stream: true, answer: in.Text.Format.Schema}
	req.addTools(in.Tools, "")
	var items []struct {
		Type    string          `json:"type"`
		Tools   []responseTool  `json:"tools"`
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
		Output  json.RawMessage `json:"output"`
	}
	if json.Unmarshal(in.Input, &items) != nil {
		req.prompts = append(req.prompts, textOf(in.Input))
	}
	for _, item := range items {
		switch {
		case item.Type == "additional_tools":
			req.addTools(item.Tools, "")
		case item.Type == "function_call_output" || item.Type == "custom_tool_call_output":
			req.results = append(req.results, textOf(item.Output))
		case item.Role == "user":
			req.prompts = append(req.prompts, textOf(item.Content))
		}
	}
	return req, nil
}

// A responseTool is a tool, or a namespace of tools.
type responseTool struct {
	Type   string         `json:"type"`
	Name   string         `json:"name"`
	Schema schema         `json:"parameters"`
	Tools  []responseTool `json:"tools"`
}

// addTools adds the tools of a namespace.
func (r *request) addTools(tools []responseTool, namespace string) {
	for _, t := range tools {
		if t.Type == "namespace" {
			r.addTools(t.Tools, t.Name)
			continue
		}
		r.tools = append(r.tools, tool{name: t.Name, schema: t.Schema, namespace: namespace, script: t.Type == "custom" && t.Name == "exec"})
	}
}

func answerResponses(w http.ResponseWriter, req *request, reply Reply, id int) error {
	c, err := req.callOf(reply)
	if err != nil {
		return err
	}
	items := itemsOf(reply, c, id)
	s := newStream(w)
	response := object{"id": fmt.Sprintf("resp_%06d", id), "object": "response", "model": req.model, "created_at": 1, "status": "in_progress", "output": []object{}}
	s.sendNumbered("response.created", object{"response": response})
	for i, item := range items {
		s.sendItem(i, item)
	}
	out := outputTokens(reply)
	response = maps.Clone(response)
	response["status"], response["output"] = "completed", items
	response["usage"] = object{
		"input_tokens": 120, "input_tokens_details": object{"cached_tokens": 20},
		"output_tokens": out, "output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": 120 + out,
	}
	s.sendNumbered("response.completed", object{"response": response})
	return nil
}

// sendItem streams one item of the output.
func (s *stream) sendItem(i int, item object) {
	s.sendNumbered("response.output_item.added", object{"output_index": i, "item": item})
	if item["type"] == "message" {
		for _, chunk := range splitChunks(item["content"].([]object)[0]["text"].(string)) {
			s.sendNumbered("response.output_text.delta", object{"output_index": i, "content_index": 0, "item_id": item["id"], "delta": chunk})
		}
	}
	s.sendNumbered("response.output_item.done", object{"output_index": i, "item": item})
}

// sendNumbered sends one event with its sequence number.
func (s *stream) sendNumbered(kind string, fields object) {
	fields["sequence_number"] = s.n
	s.n++
	s.sendEvent(kind, fields)
}

// itemsOf returns the output items of a reply.
func itemsOf(reply Reply, c *call, id int) (items []object) {
	if reply.Think != "" {
		items = append(items, object{
			"type": "reasoning", "id": fmt.Sprintf("rs_%06d", id),
			"summary": []object{{"type": "summary_text", "text": reply.Think}},
		})
	}
	if reply.Text != "" {
		items = append(items, object{
			"type": "message", "id": fmt.Sprintf("item_%06d", id), "role": "assistant",
			"content": []object{{"type": "output_text", "text": reply.Text, "annotations": []object{}}},
		})
	}
	if c == nil {
		return items
	}
	item := object{"id": fmt.Sprintf("fc_%06d", id), "call_id": fmt.Sprintf("call_%06d", id), "name": c.tool.name, "status": "completed"}
	if c.tool.namespace != "" {
		item["namespace"] = c.tool.namespace
	}
	if c.tool.script {
		item["type"], item["input"] = "custom_tool_call", c.renderScript()
	} else {
		item["type"], item["arguments"] = "function_call", c.inputText()
	}
	return append(items, item)
}
