package testmodel

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// The tools of agents, as each protocol describes them.
const (
	writeSchema = `{"type":"object","properties":{"file_path":{"type":"string"},"content":{"type":"string"}},"required":["file_path","content"]}`
	shellSchema = `{"type":"object","properties":{"command":{"type":"string"},"description":{"type":"string"},"background":{"type":"boolean"}},"required":["command","background"]}`

	messagesTools    = `"tools":[{"name":"Write","input_schema":` + writeSchema + `},{"name":"Bash","input_schema":` + shellSchema + `}]`
	responsesTools   = `"tools":[{"type":"function","name":"write","parameters":` + writeSchema + `},{"type":"function","name":"bash","parameters":` + shellSchema + `}]`
	completionsTools = `"tools":[{"type":"function","function":{"name":"create","parameters":` + writeSchema + `}},{"type":"function","function":{"name":"bash","parameters":` + shellSchema + `}}]`
	geminiTools      = `"tools":[{"functionDeclarations":[{"name":"write_file","parametersJsonSchema":` + writeSchema + `},{"name":"run_shell_command","parameters":` + shellSchema + `}]}]`
)

// The model calls the tools that each agent offers, and records what it gets.
func TestProtocols(t *testing.T) {
	tests := []struct {
		name, path, tools, conversation string
		write, run                      string // the calls, as they are in the answer
	}{
		{
			"messages", "/v1/messages", messagesTools,
			`"messages":[{"role":"user","content":"Go"},{"role":"assistant","content":[]},{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":"out"}]}]}]`,
			`"input":{"content":"x","file_path":"/a"},"name":"Write"`, `"input":{"background":false,"command":"ls","description":"does a step of the script"},"name":"Bash"`,
		},
		{
			"responses", "/v1/responses", responsesTools,
			`"input":[{"role":"user","content":[{"type":"input_text","text":"Go"}]},{"type":"function_call_output","output":"out"}]`,
			`"arguments":"{\"content\":\"x\",\"file_path\":\"/a\"}"`, `"arguments":"{\"background\":false,\"command\":\"ls\",\"description\":\"does a step of the script\"}"`,
		},
		{
			"completions", "/chat/completions", completionsTools,
			`"messages":[{"role":"user","content":"Go"},{"role":"tool","content":"out"}]`,
			`"arguments":"{\"content\":\"x\",\"file_path\":\"/a\"}","name":"create"`, `"name":"bash"`,
		},
		{
			"gemini", "/v1beta/models/m:generateContent", geminiTools,
			`"contents":[{"role":"user","parts":[{"text":"Go"}]},{"role":"user","parts":[{"functionResponse":{"response":{"output":"out"}}}]}]`,
			`"functionCall":{"args":{"content":"x","file_path":"/a"},"name":"write_file"}`, `"name":"run_shell_command"`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := New(Reply{Path: "/a", Content: "x"}, Reply{Run: "ls"}, Reply{Text: "Done."})
			body := "{" + test.tools + "," + test.conversation + "}"
			for _, want := range []string{test.write, test.run, "Done."} {
				if status, answer := postRequest(t, m, test.path, body); status != http.StatusOK || !strings.Contains(strings.ReplaceAll(answer, `"},{"text":"`, ""), want) {
					t.Errorf("got %d %s, want %s", status, answer, want)
				}
			}
			log := m.Log()
			if len(log) != 3 {
				t.Fatalf("%d requests", len(log))
			}
			last := log[2]
			if !slices.Equal(last.Prompts, []string{"Go"}) || !slices.Equal(last.Results, []string{"out"}) || last.Status != http.StatusOK ||
				last.Path != test.path || last.Header.Get("Authorization") != "Bearer "+Key || last.Body != body || !OffersTool(body, m.toolOf(t, body)) {
				t.Errorf("got %+v", last)
			}
		})
	}
}

// toolOf returns the name of the first tool in a request.
func (m *Model) toolOf(t *testing.T, body string) string {
	t.Helper()
	for _, p := range []protocol{messages, responses, completions, gemini} {
		if req, err := p.parse([]byte(body)); err == nil && len(req.tools) > 0 && req.tools[0].name != "" {
			return req.tools[0].name
		}
	}
	t.Fatal("no tool")
	return ""
}

// Streams of Chat Completions and Gemini have data only.
func TestDataStreams(t *testing.T) {
	tests := []struct{ path, body, last string }{
		{"/v1/chat/completions", `{"stream":true,` + completionsTools + `}`, "[DONE]"},
		{"/v1beta/models/m:streamGenerateContent", `{` + geminiTools + `}`, `"finishReason":"STOP"`},
	}
	for _, test := range tests {
		m := New(Reply{Text: "Let me write it.", Path: "/a", Content: "x"})
		status, body := postRequest(t, m, test.path, test.body)
		events := strings.Split(strings.TrimSpace(body), "\n\n")
		for _, e := range events {
			data, ok := strings.CutPrefix(e, "data: ")
			if !ok || data != "[DONE]" && !json.Valid([]byte(data)) {
				t.Errorf("%s: event %q", test.path, e)
			}
		}
		if status != http.StatusOK || !strings.Contains(events[len(events)-1], test.last) || !strings.Contains(body, "/a") {
			t.Errorf("%s: got %d %s", test.path, status, body)
		}
	}
}

// Newer models of codex get their tools in the input, and call them from JavaScript.
func TestCodexScript(t *testing.T) {
	const body = `{"input":[{"type":"additional_tools","tools":[{"type":"namespace","name":"functions","tools":[{"type":"custom","name":"exec"}]}]},
		{"type":"custom_tool_call_output","output":[{"type":"input_text","text":"out"}]}]}`
	m := New(Reply{Path: "/a", Content: "it's"})
	_, answer := postRequest(t, m, "/v1/responses", body)
	for _, want := range []string{`"type":"custom_tool_call"`, `"namespace":"functions"`, `text(await tools.exec_command({\"cmd\":\"printf %s 'it'\\\\''s' \\u003e '/a'\"}));`} {
		if !strings.Contains(answer, want) {
			t.Errorf("got %s, want %s", answer, want)
		}
	}
	if got := m.Log()[0].Results; !slices.Equal(got, []string{"out"}) {
		t.Errorf("got the results %q", got)
	}
}

// A request for JSON does not use up a reply.
func TestSchemas(t *testing.T) {
	const wanted = `{"type":"OBJECT","properties":{"score":{"type":"INTEGER"},"kind":{"enum":["a","b"]},"list":{"type":["array","null"]},"more":{"type":"object"},"why":{"type":"STRING"}},
		"required":["score","kind","list","more","why"]}`
	const want = `{\"kind\":\"a\",\"list\":[],\"more\":{},\"score\":60,\"why\":\"step\"}`
	for path, body := range map[string]string{
		"/v1beta/models/m:generateContent": `{"generationConfig":{"responseJsonSchema":` + wanted + `}}`,
		"/v1/responses":                    `{` + responsesTools + `,"text":{"format":{"schema":` + wanted + `}}}`,
	} {
		m := New(Reply{Text: "Done."})
		_, answer := postRequest(t, m, path, body)
		if got := strings.ReplaceAll(answer, `"},{"text":"`, ""); !strings.Contains(got, want) || m.Left() != 1 {
			t.Errorf("%s: got %s", path, answer)
		}
	}
}

// Refused requests are in the log with their headers, so that tests see which key arrived.
func TestLogOfRefusals(t *testing.T) {
	m := NewWithKey("the-real-key")
	if status, _ := postRequest(t, m, "/v1/messages", "{}"); status != http.StatusUnauthorized {
		t.Errorf("another key: got %d", status)
	}
	rec := httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodGet, "/v1/responses", nil)
	req.Header.Set("Upgrade", "websocket")
	m.ServeHTTP(rec, req)
	if rec.Code != http.StatusUpgradeRequired {
		t.Errorf("a WebSocket: got %d", rec.Code)
	}
	req = httptest.NewRequest(http.MethodPost, "/v1beta/models/m:countTokens", strings.NewReader("{}"))
	req.Header.Set("X-Goog-Api-Key", "the-real-key")
	rec = httptest.NewRecorder()
	m.ServeHTTP(rec, req)
	if rec.Code != http.StatusOK || rec.Body.String() != "{\"totalTokens\":1}\n" {
		t.Errorf("tokens: got %d %s", rec.Code, rec.Body)
	}
	log := m.Log()
	if len(log) != 3 || log[0].Status != http.StatusUnauthorized || log[0].Header.Get("Authorization") != "Bearer "+Key || log[2].Header.Get("X-Goog-Api-Key") != "the-real-key" {
		t.Errorf("got %+v", log)
	}
}
