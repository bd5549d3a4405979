package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// echoTools has one tool, which returns the call.
type echoTools struct{ seen ToolCall }

func (e *echoTools) Tools() []ToolInfo {
	return []ToolInfo{{Name: "echo", Title: "Echo", Input: json.RawMessage(`{"type":"object"}`), Output: json.RawMessage(`true`), ReadOnly: true}}
}

func (e *echoTools) CallTool(ctx context.Context, call ToolCall) (json.RawMessage, error) {
	e.seen = call
	if call.Name != "echo" {
		return nil, atoll.Errorf(call.Name, "", atoll.ErrNotExist, "there is no such tool: use echo")
	}
	return json.Marshal(map[string]string{"by": auth.AccountFrom(ctx).Name, "base": BaseURL(ctx)})
}

func TestTools(t *testing.T) {
	tools := &echoTools{}
	r := newRig(t, Options{Tools: tools, Tokens: map[string]auth.Account{"sesame": {Name: "ali"}}})
	ask := func(method, path, body string) (int, string) {
		t.Helper()
		resp, got := r.doRequest(t, method, path, body, "Authorization", "Bearer sesame")
		return resp.StatusCode, got
	}
	want := `{"tools":[{"name":"echo","title":"Echo","description":"","input_schema":{"type":"object"},"output_schema":true,"read_only":true,"destructive":false,"idempotent":false}]}`
	if status, got := ask("GET", "/v1/tools", ""); status != 200 || got != want {
		t.Errorf("tools: %d %s", status, got)
	}
	if status, got := ask("POST", "/v1/tools/echo?workflow=wf1&agent_run=run1", `{"a": 1}`); status != 200 || got != fmt.Sprintf(`{"base":%q,"by":"ali"}`, r.server.URL) {
		t.Errorf("echo: %d %s", status, got)
	}
	if s := tools.seen; s.WorkflowRunID != "wf1" || s.AgentRunID != "run1" || s.Scope != (session.Scope{}) || string(s.Input) != `{"a": 1}` {
		t.Errorf("the tool is called with %+v", s)
	}
	if status, _ := ask("POST", "/v1/tools/echo?session=conversation/c1", ""); status != 200 || tools.seen.Scope != (session.Scope{Kind: session.ScopeConversation, ID: "c1"}) {
		t.Errorf("%d, the tool is called with %+v", status, tools.seen)
	}
	for _, tt := range []struct {
		path, body string
		status     int
		kind       atoll.Kind
	}{
		{"/v1/tools/none", "{}", 404, atoll.ErrNotExist},
		{"/v1/tools/echo?session=c1", "{}", 400, atoll.ErrInvalid},
		{"/v1/tools/echo?session=conversation/c1&workflow=x", "{}", 400, atoll.ErrInvalid},
		{"/v1/tools/echo?project=x", "{}", 400, atoll.ErrInvalid},
		{"/v1/tools/echo", strings.Repeat(" ", maxToolInput+1), 413, atoll.ErrInvalid},
	} {
		status, body := ask("POST", tt.path, tt.body)
		if err := wire.DecodeError(status, []byte(body), "", ""); status != tt.status || atoll.KindOf(err) != tt.kind {
			t.Errorf("%s: %d %s, want %d %s", tt.path, status, body, tt.status, tt.kind)
		}
	}
	for path, method := range map[string]string{"/v1/tools": "GET", "/v1/tools/echo": "POST", "/mcp": "POST"} {
		if resp, _ := r.doRequest(t, method, path, ""); resp.StatusCode != 401 {
			t.Errorf("%s without a token: %d", path, resp.StatusCode)
		}
	}
	if status, body := ask("POST", "/mcp", "{}"); status != 501 || !strings.Contains(body, "sandbox service is not enabled") {
		t.Errorf("/mcp where there is none: %d %s", status, body)
	}
	bare := newRig(t, Options{})
	for path, method := range map[string]string{"/v1/tools": "GET", "/v1/tools/echo": "POST"} {
		if resp, body := bare.doRequest(t, method, path, ""); resp.StatusCode != 501 || !strings.Contains(body, "sandbox service is not enabled") {
			t.Errorf("%s without tools: %d %s", path, resp.StatusCode, body)
		}
	}
}

// The handler passes requests to /mcp unchanged, and their streams end with the handler.
func TestMCP(t *testing.T) {
	begun := make(chan string, 1)
	h, err := NewHandler(newFake(), Options{
		Tokens: map[string]auth.Account{"sesame": {Name: "ali"}},
		MCP: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			begun <- r.Method + " " + auth.AccountFrom(r.Context()).Name + " " + r.URL.RawQuery + " " + BaseURL(r.Context())
			w.WriteHeader(http.StatusAccepted)
			_ = http.NewResponseController(w).Flush()
			if r.Method == "GET" {
				<-r.Context().Done()
			}
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	r := &rig{}
	r.server = newServer(t, h)
	for _, method := range []string{"POST", "DELETE"} {
		resp, _ := r.doRequest(t, method, "/mcp?workflow=wf1", "{}", "Authorization", "Bearer sesame")
		if got, want := <-begun, method+" ali workflow=wf1 "+r.server.URL; resp.StatusCode != 202 || got != want {
			t.Errorf("%d, it got %q, want %q", resp.StatusCode, got, want)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", r.server.URL+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer sesame")
	resp, err := r.server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		close(ended)
	}()
	h.Close()
	select {
	case <-ended:
	case <-time.After(testenv.Scale(20 * time.Second)):
		t.Error("the stream continues")
	}
}
