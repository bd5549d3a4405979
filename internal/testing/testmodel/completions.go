package testmodel

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// completions is OpenAI's Chat Completions API, which many servers of other models speak.
var completions = protocol{parse: parseCompletions, answer: answerCompletions}

func parseCompletions(body []byte) (*request, error) {
	var in struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
		Tools  []struct {
			Function struct {
				Name   string `json:"name"`
				Schema schema `json:"parameters"`
			} `json:"function"`
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
		req.tools = append(req.tools, tool{name: t.Function.Name, schema: t.Function.Schema})
	}
	for _, m := range in.Messages {
		switch m.Role {
		case "user":
			req.prompts = append(req.prompts, textOf(m.Content))
		case "tool":
			req.results = append(req.results, textOf(m.Content))
		}
	}
	return req, nil
}

func answerCompletions(w http.ResponseWriter, req *request, reply Reply, id int) error {
	c, err := req.callOf(reply)
	if err != nil {
		return err
	}
	finish, calls := "stop", []object(nil)
	if c != nil {
		finish = "tool_calls"
		calls = []object{{
			"index": 0, "id": fmt.Sprintf("call_%06d", id), "type": "function",
			"function": object{"name": c.tool.name, "arguments": c.inputText()},
		}}
	}
	out := outputTokens(reply)
	usage := object{"prompt_tokens": 120, "completion_tokens": out, "total_tokens": 120 + out}
	body := func(kind, field string, message object, finish any) object {
		return object{
			"id": fmt.Sprintf("chatcmpl_%06d", id), "object": kind, "created": 1, "model": req.model,
			"choices": []object{{"index": 0, field: message, "finish_reason": finish}},
		}
	}
	if !req.stream {
		message := object{"role": "assistant", "content": reply.Text}
		if calls != nil {
			message["tool_calls"] = calls
		}
		answer := body("chat.completion", "message", message, finish)
		answer["usage"] = usage
		writeJSON(w, answer)
		return nil
	}
	s := newStream(w)
	send := func(delta object, finish any) { s.sendData(body("chat.completion.chunk", "delta", delta, finish)) }
	send(object{"role": "assistant", "content": ""}, nil)
	for _, chunk := range splitChunks(reply.Text) {
		send(object{"content": chunk}, nil)
	}
	if calls != nil {
		send(object{"tool_calls": calls}, nil)
	}
	last := body("chat.completion.chunk", "delta", object{}, finish)
	last["usage"] = usage
	s.sendData(last)
	fmt.Fprint(w, "data: [DONE]\n\n")
	return nil
}
