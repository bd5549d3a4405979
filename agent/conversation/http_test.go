package conversation_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/conversation"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// An apiServer serves a service by HTTP to two accounts, whose tokens are their names.
type apiServer struct {
	t   testing.TB
	url string
}

func serveAPI(t testing.TB, fx *fixture, v *conversation.Service) *apiServer {
	t.Helper()
	h, err := api.NewHandler(fx.provider, api.Options{
		Tokens: map[string]auth.Account{"mine": {Name: "mine"}, "other": {Name: "other"}}, Conversations: v,
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(func() { server.Close(); h.Close() })
	return &apiServer{t, server.URL}
}

// sendRequest makes a request, and returns the status, the body and the header.
func (s *apiServer) sendRequest(method, path, body string, header ...string) (int, string, http.Header) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if body == "" {
		req.Body = nil
		req.ContentLength = 0
	}
	req.Header.Set("Authorization", "Bearer mine")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

// parseSSE returns the ids and the data of server-sent events.
func parseSSE(t testing.TB, text string) (ids, data []string) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			ids = append(ids, id)
		}
		if d, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			data = append(data, d)
		}
	}
	return ids, data
}

func TestRoutes(t *testing.T) {
	const id = "11111111-2222-4333-8444-555555555555" // testSandbox with hyphens
	fx := newFixture(t).withBucket()
	s := serveAPI(t, fx, fx.openService())
	status, text, header := s.sendRequest("POST", "/conversation/c/sandbox/"+id, `{"prompt": "say <hello> & \"you\"\nrun mkdir d; echo data > 'd/a b'", "agent_id": "a", "provider": "agent"}`)
	if status != 200 || !strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("%d %v %s", status, header, text)
	}
	ids, data := parseSSE(t, text)
	if len(ids) != len(data) || !strings.Contains(data[0], `"conversationId":"c","sandboxId":"`+testSandbox+`"`) || !strings.Contains(text, `"delta":"<hello> & \"you\""`) {
		t.Errorf("events:\n%s", text)
	}
	if last := data[len(data)-1]; !strings.HasPrefix(last, `{"type":"finish","finishReason":"stop","usage":{"inputTokens":`) {
		t.Errorf("the last event: %s", last)
	}
	if _, again, _ := s.sendRequest("GET", "/v1/conversation/c/stream", "", "Last-Event-ID", ids[1]); !strings.HasPrefix(again, "id: "+ids[2]) {
		t.Errorf("after %s:\n%s", ids[1], again)
	}

	if status, again, _ := s.sendRequest("GET", "/v1/conversation/c/stream", "", "Last-Event-ID", ids[len(ids)-1]); status != 204 {
		t.Errorf("after the last event: %d %q, want 204, by which an EventSource ends", status, again)
	}

	// Reading.
	for path, want := range map[string]string{
		"/conversation":                              `"id":"c"`,
		"/conversation?limit=1":                      `"id":"c"`,
		"/v1/conversation?after=c":                   `"conversations":[]`,
		"/conversation/c":                            `"agent_id":"a","provider":"agent","sandbox_id":"` + testSandbox + `","stats":{"messages_exchanged":`,
		"/v1/conversation/c/messages":                `"role":"user"`,
		"/sandbox":                                   `"external_id":"` + testSandbox + `"`,
		"/v1/sandbox/" + id:                          `"meta_data":{"last_s3_sync":`,
		"/sandbox/" + id + "/versions":               `"latest":true`,
		"/sandbox/" + id + "/files":                  `{"name":"a b","path":"d/a b","size":5,`,
		"/sandbox/" + id + "/files?source=s3":        `"checksum":"6137cde4893c59f76f005a8123d8e8e6"`,
		"/sandbox/" + id + "/files?source=s3&path=d": `"total_count":1,"page":1,"per_page":100,"total_pages":1`,
		"/sandbox/" + id + "/files?source=s3&recursive=false&path=.":        `"path":"d"`,
		"/sandbox/" + id + "/files?page=99":                                 `"files":[]`,
		"/sandbox/" + id + "/files?page=x&per_page=y&path=d":                `"page":1,"per_page":100`,
		"/sandbox/" + id + "/files?path=d&per_page=1":                       `"per_page":1`,
		"/sandbox/" + id + "/files/tree":                                    `"children":[`,
		"/sandbox/" + id + "/files/tree?source=s3&path=d":                   `{"name":"d","path":"d","size":0,"modified_at":0,"is_directory":true,"children":[{"name":"a b"`,
		"/sandbox/" + id + "/files/content?file_path=d/a+b":                 "data\n",
		"/v1/sandbox/" + id + "/files/content?source=s3&file_path=/d/a%20b": "data\n",
	} {
		if status, text, _ := s.sendRequest("GET", path, ""); status != 200 || !strings.Contains(text, want) {
			t.Errorf("GET %s: %d %s, want %s", path, status, text, want)
		}
	}

	// Bad requests.
	for _, test := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/conversation/c/sandbox/" + id, ``, 400, "body is empty"},
		{"POST", "/conversation/c/sandbox/" + id, `{`, 400, ""},
		{"POST", "/conversation/c/sandbox/" + id, `{}`, 400, "the prompt is missing"},
		{"POST", "/conversation/c/sandbox/" + id, `{"prompt": 7}`, 400, "prompt: must be a string"},
		{"POST", "/conversation/c/sandbox/" + id, `{"promt": "x"}`, 400, "unknown field"},
		{"POST", "/conversation/n/sandbox/n", `{"prompt": "x", "provider": 77}`, 400, "unsupported provider: 77"},
		{"POST", "/conversation/n/sandbox/n", `{"prompt": "x", "provider": "nope"}`, 400, "unsupported provider: nope"},
		{"POST", "/conversation/a%2Fb/sandbox/n", `{"prompt": "x"}`, 400, "id"},
		{"POST", "/conversation/c/sandbox/other", `{"prompt": "x"}`, 409, "its sandbox is"},
		{"POST", "/conversation/d/sandbox/" + id, `{"prompt": "x"}`, 409, "belongs to conversation c"},
		{"GET", "/conversation/none", "", 404, ""},
		{"GET", "/conversation?limit=0", "", 400, "limit"},
		{"GET", "/conversation?limit=x", "", 400, "limit"},
		{"GET", "/conversation/c/messages?before=none", "", 404, ""},
		{"GET", "/sandbox/none", "", 404, ""},
		{"GET", "/sandbox/" + id + "/files?source=disk", "", 400, "source must be 'volume' or 's3'"},
		{"GET", "/sandbox/" + id + "/files?page=0", "", 400, "page must be at least 1"},
		{"GET", "/sandbox/" + id + "/files?per_page=1001", "", 400, "per_page must be between 1 and 1000"},
		{"GET", "/sandbox/" + id + "/files?path=../etc", "", 400, "invalid path: directory traversal not allowed"},
		{"GET", "/sandbox/" + id + "/files?source=s3&path=nope", "", 404, "no directory"},
		{"GET", "/sandbox/" + id + "/files/content?file_path=../../etc/passwd", "", 400, "invalid path: directory traversal not allowed"},
		{"GET", "/sandbox/" + id + "/files/content?file_path=nope", "", 404, ""},
		{"GET", "/sandbox/" + id + "/files/content?source=s3&file_path=nope", "", 404, ""},
		{"GET", "/sandbox/" + id + "/files/content", "", 400, "file_path"},
		{"POST", "/sandbox/" + id + "/restore", `{"version": -1}`, 400, "version"},
		{"POST", "/sandbox/" + id + "/restore", `{"version": 12}`, 404, "no version 12"},
		{"POST", "/conversation/c/cancel", "", 409, "no turn runs"},
		{"POST", "/sandbox", `{"id": "a/b"}`, 400, "invalid sandbox"},
		{"POST", "/sandbox", `{"id": "` + id + `", "provider": "agent"}`, 409, "belongs to conversation c"},
	} {
		status, text, _ := s.sendRequest(test.method, test.path, test.body)
		if status != test.status || !strings.Contains(text, test.want) {
			t.Errorf("%s %s %s: %d %s, want %d with %q", test.method, test.path, test.body, status, text, test.status, test.want)
		}
	}
	if status, _, _ := s.sendRequest("GET", "/conversation/c", "", "Authorization", "Bearer other"); status != 404 {
		t.Errorf("another account's: %d", status)
	}
	if status, _, _ := s.sendRequest("GET", "/conversation/c", "", "Authorization", ""); status != 401 {
		t.Errorf("nobody's: %d", status)
	}

	// Syncing, creating and deleting.
	if status, text, _ := s.sendRequest("POST", "/sandbox/"+id+"/sync", ""); status != 200 || !strings.Contains(text, `"files_uploaded":`) {
		t.Errorf("sync: %d %s", status, text)
	}
	status, text, _ = s.sendRequest("POST", "/sandbox", `{"provider": "agent", "agent_id": "a"}`)
	var made agent.Sandbox
	if err := json.Unmarshal([]byte(text), &made); status != 201 || err != nil || made.State != atoll.StateRunning {
		t.Errorf("POST /sandbox: %d %s", status, text)
	}
	for _, path := range []string{"?sandbox=lose", "?sandbox=keep&terminate=true", "?force=maybe"} {
		if status, text, _ := s.sendRequest("DELETE", "/conversation/c"+path, ""); status != 400 {
			t.Errorf("DELETE %s: %d %s", path, status, text)
		}
	}
	for _, test := range []struct{ path, want string }{
		{"/sandbox/" + made.ID, `{"sandbox_id":"` + made.ID + `","sandbox":"removed","version":`},
		{"/v1/sandbox/" + id, `{"sandbox_id":"` + testSandbox + `","sandbox":"removed","version":`},
		{"/conversation/c?terminate=true", `"sandbox":"removed"}`},
	} {
		if status, text, _ := s.sendRequest("DELETE", test.path, ""); status != 200 || !strings.Contains(text, test.want) {
			t.Errorf("DELETE %s: %d %s, want %s", test.path, status, text, test.want)
		}
	}
	fx.wantNoSandboxes()
	if status, text, _ := s.sendRequest("GET", "/sandbox/"+id+"/files?source=s3", ""); status != 200 || !strings.Contains(text, "d/a b") {
		t.Errorf("the pushed files: %d %s", status, text)
	}
	if status, _, _ := s.sendRequest("GET", "/conversation/c", ""); status != 404 {
		t.Errorf("the deleted conversation: %d", status)
	}
}

// The older endpoint streams the agent's lines unchanged.
func TestRawStream(t *testing.T) {
	fx := newFixture(t)
	s := serveAPI(t, fx, fx.openService())
	for i, path := range []string{"/sandboxes/" + testSandbox + "/claude", "/sandbox/" + testSandbox + "/claude", "/v1/sandboxes/" + testSandbox + "/claude"} {
		status, text, _ := s.sendRequest("POST", path, `{"prompt": "say hello", "provider": "agent"}`)
		_, data := parseSSE(t, text)
		if status != 200 || len(data) < 3 || data[len(data)-1] != "[DONE]" || !strings.Contains(data[0], `"subtype":"init"`) {
			t.Fatalf("%s: %d\n%s", path, status, text)
		}
		for _, line := range data[:len(data)-1] {
			if !json.Valid([]byte(line)) {
				t.Errorf("%s: not a line of the agent: %s", path, line)
			}
		}
		if i > 0 && !strings.Contains(text, "I remember") {
			t.Errorf("%s: another conversation:\n%s", path, text)
		}
	}
	// It is an ordinary conversation.
	if status, text, _ := s.sendRequest("GET", "/conversation/"+testSandbox+"/messages", ""); status != 200 || strings.Count(text, `"role":"user"`) != 3 {
		t.Errorf("messages: %d %s", status, text)
	}
	status, text, _ := s.sendRequest("POST", "/sandboxes/"+testSandbox+"/claude", `{"prompt": "raw not\rJSON"}`)
	if _, data := parseSSE(t, text); status != 200 || !strings.Contains(strings.Join(data, "|"), "not|JSON") {
		t.Errorf("a line with a carriage return: %d %q", status, text)
	}
	if status, _, _ := s.sendRequest("POST", "/sandboxes/"+testSandbox+"/claude", `{}`); status != 400 {
		t.Errorf("without a prompt: %d", status)
	}
}

func TestNoConversations(t *testing.T) {
	fx := newFixture(t)
	h, err := api.NewHandler(fx.provider, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, path := range []string{"/conversation", "/v1/conversation/c", "/sandbox", "/v1/sandbox/" + testSandbox + "/files"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != 501 || !strings.Contains(w.Body.String(), "keeps no conversations") {
			t.Errorf("GET %s: %d %s", path, w.Code, w.Body)
		}
	}
}
