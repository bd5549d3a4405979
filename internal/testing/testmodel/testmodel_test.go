package testmodel

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const claudeTools = `"tools":[{"name":"Read"},{"name":"Bash"}]`

// postRequest sends a request to a model and returns the status and the body of its answer.
func postRequest(t *testing.T, m *Model, path, body string) (int, string) {
	t.Helper()
	server := httptest.NewServer(m)
	defer server.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+Key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

// readEvents returns the types of the events in a stream, and the concatenated text of their deltas.
func readEvents(t *testing.T, stream string) (types []string, pieces string) {
	t.Helper()
	for lines := bufio.NewScanner(strings.NewReader(stream)); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e struct {
			Type  string          `json:"type"`
			Delta json.RawMessage `json:"delta"`
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		types = append(types, e.Type)
		var text string
		var delta struct {
			Text string `json:"text"`
			JSON string `json:"partial_json"`
		}
		if json.Unmarshal(e.Delta, &text) != nil {
			_ = json.Unmarshal(e.Delta, &delta) // fails for other kinds of delta
		}
		pieces += text + delta.Text + delta.JSON
	}
	return types, pieces
}

func TestMessages(t *testing.T) {
	m := New(Reply{Think: "Hm.", Text: "Let me look, Jürgen.", Run: "ls"}, Reply{Text: "Done."})
	status, body := postRequest(t, m, "/v1/messages", `{"model":"m",`+claudeTools+`}`)
	var got struct {
		Content []map[string]any `json:"content"`
		Stop    string           `json:"stop_reason"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != http.StatusOK || got.Stop != "tool_use" || len(got.Content) != 3 || got.Content[2]["name"] != "Bash" {
		t.Errorf("got %d %s, %v", status, body, err)
	}
	status, body = postRequest(t, m, "/v1/messages", `{"model":"m","stream":true,`+claudeTools+`}`)
	types, text := readEvents(t, body)
	want := "message_start content_block_start content_block_delta content_block_stop message_delta message_stop"
	if status != http.StatusOK || strings.Join(types, " ") != want || text != "Done." {
		t.Errorf("got %d %q %q", status, types, text)
	}
	if m.Left() != 0 || len(m.Requests()) != 2 {
		t.Errorf("%d replies left after %d requests", m.Left(), len(m.Requests()))
	}
}

func TestStreamedCall(t *testing.T) {
	m := New(Reply{Think: "Hm.", Run: "echo 'a long command that comes in pieces'"})
	_, body := postRequest(t, m, "/v1/messages", `{"stream":true,`+claudeTools+`}`)
	types, input := readEvents(t, body)
	if !strings.Contains(input, `"command":"echo 'a long command that comes in pieces'"`) || !json.Valid([]byte(input)) {
		t.Errorf("got the input %q in %q", input, types)
	}
}

func TestResponses(t *testing.T) {
	tests := []struct{ tool, want string }{
		{"exec_command", `"arguments":"{\"cmd\":\"ls\"}"`},
		{"shell_command", `"arguments":"{\"command\":\"ls\"}"`},
		{"shell", `"arguments":"{\"command\":[\"sh\",\"-c\",\"ls\"]}"`},
	}
	for _, test := range tests {
		t.Run(test.tool, func(t *testing.T) {
			m := New(Reply{Think: "Hm.", Text: "Let me look, Jürgen.", Run: "ls"})
			status, body := postRequest(t, m, "/v1/responses", `{"stream":true,"tools":[{"type":"function","name":"`+test.tool+`"}]}`)
			types, text := readEvents(t, body)
			if status != http.StatusOK || text != "Let me look, Jürgen." || !strings.Contains(body, test.want) || types[len(types)-1] != "response.completed" {
				t.Errorf("got %d %s", status, body)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	tests := []struct {
		name, path, body string
		replies          []Reply
		status           int
		want             string
	}{
		{"over", "/v1/messages", "{" + claudeTools + "}", nil, http.StatusBadRequest, "no reply left for request 1"},
		{"error", "/v1/messages", "{" + claudeTools + "}", []Reply{{Error: "too long"}}, http.StatusBadRequest, "too long"},
		{"no tool", "/v1/messages", `{"tools":[{"name":"Read"}]}`, []Reply{{Run: "ls"}}, http.StatusBadRequest, "offers no tool"},
		{"no tool of codex", "/v1/responses", `{"tools":[{"name":"view_image"}]}`, []Reply{{Run: "ls"}}, http.StatusBadRequest, "offers no tool"},
		{"no JSON", "/v1/messages", "hello", nil, http.StatusBadRequest, "invalid character"},
		{"no such path", "/v1/complete", "{}", nil, http.StatusNotFound, "no POST /v1/complete"},
		{"without tools", "/v1/messages", "{}", nil, http.StatusOK, `"text":"ok"`},
		{"tokens", "/v1/messages/count_tokens", "{}", nil, http.StatusOK, `{"input_tokens":1}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			status, body := postRequest(t, New(test.replies...), test.path, test.body)
			if status != test.status || !strings.Contains(body, test.want) {
				t.Errorf("got %d %s, want %d %s", status, body, test.status, test.want)
			}
		})
	}
}

func TestKey(t *testing.T) {
	rec := httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodPost, "/v1/messages", strings.NewReader("{}"))
	req.Header.Set("X-Api-Key", "another")
	New().ServeHTTP(rec, req)
	if rec.Code != http.StatusUnauthorized {
		t.Errorf("got %d", rec.Code)
	}
	rec = httptest.NewRecorder()
	New().ServeHTTP(rec, httptest.NewRequest(http.MethodHead, "/", nil))
	if rec.Code != http.StatusOK {
		t.Errorf("HEAD /: got %d", rec.Code)
	}
}
