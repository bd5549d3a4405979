package testmodel

import (
	"cmp"
	"encoding/json"
	"net/http"
	"reflect"
)

// gemini is the part generateContent and streamGenerateContent of the Gemini API.
var gemini = protocol{parse: parseGemini, answer: answerGemini, tokens: "totalTokens"}

func parseGemini(body []byte) (*request, error) {
	var in struct {
		Tools []struct {
			Functions []struct {
				Name       string `json:"name"`
				Parameters schema `json:"parameters"`
				JSONSchema schema `json:"parametersJsonSchema"`
			} `json:"functionDeclarations"`
		} `json:"tools"`
		Config struct {
			Schema *schema `json:"responseJsonSchema"`
		} `json:"generationConfig"`
		Contents []struct {
			Role  string `json:"role"`
			Parts []struct {
				Text     string `json:"text"`
				Response *struct {
					Response json.RawMessage `json:"response"`
				} `json:"functionResponse"`
			} `json:"parts"`
		} `json:"contents"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	req := &request{answer: in.Config.Schema}
	for _, t := range in.Tools {
		for _, f := range t.Functions {
			s := f.JSONSchema
			if reflect.ValueOf(s).IsZero() {
				s = f.Parameters
			}
			req.tools = append(req.tools, tool{name: f.Name, schema: s})
		}
	}
	for _, c := range in.Contents {
		for _, p := range c.Parts {
			switch {
			case p.Response != nil:
				req.results = append(req.results, outputOf(p.Response.Response))
			case c.Role == "user" && p.Text != "":
				req.prompts = append(req.prompts, p.Text)
			}
		}
	}
	return req, nil
}

// outputOf returns the output in the response of a function, or all of the response.
func outputOf(response json.RawMessage) string {
	var r struct {
		Output string `json:"output"`
		Error  string `json:"error"`
	}
	_ = json.Unmarshal(response, &r) // fails for a response of another form
	return cmp.Or(r.Output, r.Error, string(response))
}

func answerGemini(w http.ResponseWriter, req *request, reply Reply, _ int) error {
	c, err := req.callOf(reply)
	if err != nil {
		return err
	}
	var parts []object
	if reply.Think != "" {
		parts = append(parts, object{"text": reply.Think, "thought": true})
	}
	for _, chunk := range splitChunks(reply.Text) {
		parts = append(parts, object{"text": chunk})
	}
	if c != nil {
		parts = append(parts, object{"functionCall": object{"name": c.tool.name, "args": c.input}})
	}
	out := outputTokens(reply)
	usage := object{"promptTokenCount": 120, "candidatesTokenCount": out, "totalTokenCount": 120 + out}
	if req.method != "streamGenerateContent" {
		writeJSON(w, object{
			"candidates":    []object{{"content": object{"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}},
			"usageMetadata": usage,
		})
		return nil
	}
	s := newStream(w)
	for i, part := range parts {
		candidate := object{"content": object{"role": "model", "parts": []object{part}}, "index": 0}
		event := object{"candidates": []object{candidate}}
		if i == len(parts)-1 {
			candidate["finishReason"], event["usageMetadata"] = "STOP", usage
		}
		s.sendData(event)
	}
	return nil
}
