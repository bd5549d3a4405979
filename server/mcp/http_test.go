package mcp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testsession"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/server/mcp"
	"github.com/seed46cd37a8/atoll/server/origin"
)

// accountHeader names the account of a request in these tests, in place of a token.
const accountHeader = "X-Account"

// serveHTTP serves s over HTTP.
func serveHTTP(t *testing.T, s *mcp.Server) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(w, r.WithContext(auth.WithAccount(r.Context(), auth.Account{Name: r.Header.Get(accountHeader)})))
	}))
	t.Cleanup(func() {
		server.CloseClientConnections() // waiting streams
		server.Close()
	})
	return server
}

// A headerTransport adds headers to all requests.
type headerTransport map[string]string

func (h headerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range h {
		r.Header.Set(name, value)
	}
	return http.DefaultTransport.RoundTrip(r)
}

func dialHTTP(t *testing.T, url string, h headerTransport) *client {
	t.Helper()
	conn, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).
		Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: h}, MaxRetries: -1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{ClientSession: conn, t: t}
}

func TestHTTP(t *testing.T) {
	p := testsession.Open(t)
	s := newServer(t, p, tools.Options{}, mcp.Options{})
	server := serveHTTP(t, s)
	a, b := dialHTTP(t, server.URL, nil), dialHTTP(t, server.URL, nil)
	a.wantFields("sandbox_fs_write", m{"path": "f", "content": "a"})
	b.wantFields("sandbox_fs_list", m{}, "entries", "[]")
	r, err := a.ListResources(t.Context(), nil)
	if err != nil || len(r.Resources) != 1 {
		t.Errorf("resources: %+v, %v", r, err)
	}
	if err := a.ClientSession.Close(); err != nil { // sends a DELETE
		t.Error(err)
	}
	if got := listSessions(t, p); len(got) != 1 {
		t.Errorf("after a DELETE: %q", got)
	}
	b.wantFields("sandbox_fs_list", m{}, "entries", "[]")
	if err := dialHTTP(t, server.URL, nil).ClientSession.Close(); err != nil { // it has made no call
		t.Error(err)
	}
	for end := time.Now().Add(testenv.Scale(10 * time.Second)); s.Clients() != 1; time.Sleep(time.Millisecond) { // the SDK removes a session a moment after its end
		if time.Now().After(end) {
			t.Fatalf("there are %d MCP sessions, want that of b", s.Clients())
		}
	}
}

// A request that names a scope by headers or in the query uses that, and the scope's
// sandbox stays.
func TestHTTPScope(t *testing.T) {
	p := testsession.Open(t)
	server := serveHTTP(t, newServer(t, p, tools.Options{}, mcp.Options{}))
	a := dialHTTP(t, server.URL, headerTransport{mcp.WorkflowHeader: "wf1", mcp.AgentRunHeader: "run1"})
	a.wantFields("sandbox_open", m{}, "session_id", "workflow_wf1_sandbox")
	a.ClientSession.Close()
	dialHTTP(t, server.URL+"?workflow=wf1", nil).wantFields("sandbox_open", m{}, "session_id", "workflow_wf1_sandbox")
	dialHTTP(t, server.URL+"?session=conversation/c1", nil).wantFields("sandbox_open", m{}, "session_id", "conversation_c1_sandbox")
	dialHTTP(t, server.URL, headerTransport{mcp.AgentRunHeader: "run1"}).wantFields("sandbox_open", m{}, "session_id", "agent_run1_sandbox")
	if got := fmt.Sprint(listSessions(t, p)); got != "[agent_run1_sandbox conversation_c1_sandbox workflow_wf1_sandbox]" {
		t.Errorf("sessions: %s", got)
	}
	for _, query := range []string{"?workflow=a%20b", "?agent_run=-", "?session=x"} {
		if status, body := postJSON(t, server.URL+query, initialize, nil); status != 400 || body == "" {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

func postJSON(t *testing.T, url, body string, h headerTransport) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	host := h["Host"]
	delete(h, "Host")
	req.Host = host
	resp, err := (&http.Client{Transport: h}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, text.String()
}

// Requests from web pages of other origins are refused. The name of the server may be that of a proxy: a page whose name
// was made to resolve to this machine has no token. A server that checks none accepts local names only.
func TestOrigin(t *testing.T) {
	p := testsession.Open(t)
	origins, err := origin.NewPolicy([]string{"https://public.example:8443"}, []string{"https://app.example"})
	if err != nil {
		t.Fatal(err)
	}
	server, open := serveHTTP(t, newServer(t, p, tools.Options{}, mcp.Options{AnyHost: true, Origins: origins})), serveHTTP(t, newServer(t, p, tools.Options{}, mcp.Options{}))
	host := strings.TrimPrefix(server.URL, "http://")
	for _, tt := range []struct {
		h    headerTransport
		want int
	}{
		{headerTransport{}, 200},
		{headerTransport{"Origin": server.URL}, 200},
		{headerTransport{"Sec-Fetch-Site": "same-origin"}, 200},
		{headerTransport{"Origin": "https://public.example:8443", "X-Forwarded-Host": "public.example:8443"}, 200},
		{headerTransport{"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}, 200},
		{headerTransport{"Origin": "https://evil.example"}, 403},
		{headerTransport{"Origin": "https://evil.example", "X-Forwarded-Host": "evil.example"}, 403},
		{headerTransport{"Origin": "null"}, 403},
		{headerTransport{"Origin": "http://localhost:1"}, 403},
		{headerTransport{"Sec-Fetch-Site": "cross-site"}, 403},
		{headerTransport{"Host": "atoll.example"}, 200},
		{headerTransport{"Host": "atoll.example", "Origin": "https://atoll.example"}, 200},
		{headerTransport{"Host": "atoll.example", "Origin": "https://evil.example"}, 403},
		{headerTransport{"Host": "localhost:" + host[strings.LastIndex(host, ":")+1:]}, 200},
	} {
		name := fmt.Sprint(tt.h)
		if status, body := postJSON(t, server.URL, initialize, tt.h); status != tt.want {
			t.Errorf("%s: %d %s, want %d", name, status, body, tt.want)
		}
	}
	for _, h := range []headerTransport{{"Host": "evil.example"}, {"Host": "evil.example", "Origin": "http://evil.example"}} {
		name := fmt.Sprint(h)
		if status, body := postJSON(t, open.URL, initialize, h); status != 403 {
			t.Errorf("without a token, %s: %d %s, want 403", name, status, body)
		}
	}
	if status, _ := postJSON(t, server.URL, strings.Repeat(" ", 64<<20), nil); status != 413 {
		t.Errorf("a body without an end: %d", status)
	}
}

// An MCP session belongs to its account.
func TestHTTPAccount(t *testing.T) {
	p := testsession.Open(t)
	whose := make(chan string, 10)
	s := newServer(t, p, tools.Options{URL: func(ctx context.Context, _ atoll.Sandbox, _ int) (string, error) {
		whose <- auth.AccountFrom(ctx).Name
		return "http://x", nil
	}}, mcp.Options{})
	server := serveHTTP(t, s)
	a := dialHTTP(t, server.URL, headerTransport{accountHeader: "ali"})
	a.wantFields("sandbox_port", m{"port": 1}, "url", "http://x")
	if got := <-whose; got != "ali" {
		t.Errorf("the call is %s's", got)
	}
	for _, method := range []string{"GET", "POST", "DELETE"} {
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL, strings.NewReader(`{"jsonrpc":"2.0","id":9,"method":"tools/list"}`))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{accountHeader: "eve", "Mcp-Session-Id": a.ID(), "Content-Type": "application/json", "Accept": "application/json, text/event-stream"} {
			req.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 403 {
			t.Errorf("%s by another account: %d", method, resp.StatusCode)
		}
	}
	a.wantFields("sandbox_exec", m{"command": "echo still here"}, "stdout", "still here\n")
}

// A client's commands end when it cancels the call, vanishes during its request, or
// ends the session.
func TestHTTPCancel(t *testing.T) {
	p := testsession.Open(t)
	s := newServer(t, p, tools.Options{}, mcp.Options{})
	server := serveHTTP(t, s)
	c := dialHTTP(t, server.URL, headerTransport{mcp.WorkflowHeader: "wf1"})
	ctx, cancel := context.WithCancel(t.Context())
	pid, ended := c.beginSleep(ctx)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the call: %v", err)
	}
	c.waitGone(pid)

	c.wantFields("sandbox_exec", m{"command": "mkfifo begun"})
	req, err := http.NewRequestWithContext(t.Context(), "POST", server.URL, strings.NewReader(
		`{"jsonrpc":"2.0","id":99,"method":"tools/call","params":{"name":"sandbox_exec","arguments":{"command":"echo $$ > begun; sleep 1000"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		mcp.WorkflowHeader: "wf1", "Mcp-Session-Id": c.ID(), "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-06-18",
	} {
		req.Header.Set(name, value)
	}
	transport := &http.Transport{}
	gone := make(chan struct{})
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		defer close(gone)
		if resp, err := (&http.Client{Transport: transport}).Do(req.WithContext(ctx)); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}()
	pid = strings.TrimSpace(c.call("sandbox_exec", m{"command": "cat begun; rm begun"})["stdout"].(string))
	cancel()
	<-gone
	transport.CloseIdleConnections()
	c.waitGone(pid)

	pid, ended = c.beginSleep(t.Context())
	del, err := http.NewRequestWithContext(t.Context(), "DELETE", server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	del.Header.Set("Mcp-Session-Id", c.ID())
	resp, err := http.DefaultClient.Do(del)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		t.Errorf("the DELETE: %d", resp.StatusCode)
	}
	<-ended
	dialHTTP(t, server.URL, headerTransport{mcp.WorkflowHeader: "wf1"}).waitGone(pid)
}

func TestHTTPIdle(t *testing.T) {
	p := testsession.Open(t)
	idle := max(3*time.Second, testenv.Scale(1500*time.Millisecond)) // a client makes its next call within this time
	sleep := func(idles float64) string { return fmt.Sprintf("sleep %.2f", idles*idle.Seconds()) }
	server := serveHTTP(t, newServer(t, p, tools.Options{IdleTimeout: atoll.Duration(idle)}, mcp.Options{IdleTimeout: idle}))
	silent := server.Config.Handler
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete { // the client sends it to end a session whose stream ends, which is not tested here
			silent.ServeHTTP(w, r)
		}
	})
	c := dialHTTP(t, server.URL, nil)
	c.wantFields("sandbox_exec", m{"command": sleep(1.5)}, "exit_code", 0) // this counts as use
	// The next command runs until busy at least.
	busy := time.Now().Add(2 * idle)
	c.wantFields("sandbox_exec", m{"command": sleep(2), "background": true})
	for end := time.Now().Add(testenv.Scale(20 * time.Second)); len(listSessions(t, p)) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the session is still there")
		}
	}
	if time.Now().Before(busy) {
		t.Error("the sandbox has gone while a command ran in the background")
	}
	if _, err := c.ListTools(t.Context(), nil); err == nil {
		t.Error("a session that has ended answers")
	}
}

// Close cancels calls in progress, and removes the sessions' resources.
func TestClose(t *testing.T) {
	p := testsession.Open(t)
	s := newServer(t, p, tools.Options{}, mcp.Options{})
	server := serveHTTP(t, s)
	a, b := dialHTTP(t, server.URL, nil), dialStreams(t, s, nil)
	b.wantFields("sandbox_open", m{})
	_, ended := a.beginSleep(t.Context())
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-ended
	if err := <-b.run; err != nil {
		t.Errorf("Run: %v", err)
	}
	if got := listSessions(t, p); len(got) > 0 {
		t.Errorf("left: %q", got)
	}
	if status, body := postJSON(t, server.URL, initialize, nil); status != 503 {
		t.Errorf("afterwards: %d %s", status, body)
	}
	if err := s.Close(); err != nil {
		t.Errorf("again: %v", err)
	}
}
