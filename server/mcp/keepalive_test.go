package mcp_test

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/internal/testing/testsession"
	"github.com/seed46cd37a8/atoll/server/mcp"
)

// A proxy in front of the server has a name of its own, and closes silent connections: the server accepts any name,
// since a token protects it, and writes comments on each open stream.
func TestBehindAProxy(t *testing.T) {
	s := newServer(t, testsession.Open(t), tools.Options{}, mcp.Options{AnyHost: true})
	mcp.PingEvery(s, 20*time.Millisecond)
	server := serveHTTP(t, s)
	send := func(method, session, body string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "atoll.example.com"
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		if resp.StatusCode/100 != 2 {
			t.Fatalf("%s %s: status %d", method, body, resp.StatusCode)
		}
		return resp
	}
	resp := send("POST", "", initialize)
	session := resp.Header.Get("Mcp-Session-Id")
	resp.Body.Close()
	send("POST", session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)

	wait := send("POST", session, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"sandbox_exec","arguments":{"command":"until test -e go; do sleep 0.05; done; echo done"}}}`)
	calls := bufio.NewScanner(wait.Body)
	readComment(t, "of a call", calls)
	readComment(t, "of a call", calls) // and again

	readComment(t, "of the standing stream", bufio.NewScanner(send("GET", session, "").Body))

	send("POST", session, `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"sandbox_fs_write","arguments":{"path":"go","content":""}}}`)
	for calls.Scan() {
		if data, ok := strings.CutPrefix(calls.Text(), "data: "); ok {
			if !strings.Contains(data, "done") {
				t.Errorf("the result is %s", data)
			}
			return
		}
	}
	t.Errorf("no result: %v", calls.Err())
}

// readComment reads a stream up to a comment.
func readComment(t *testing.T, what string, lines *bufio.Scanner) {
	t.Helper()
	for lines.Scan() {
		if lines.Text() == ": ping" {
			return
		}
		if strings.HasPrefix(lines.Text(), "data: ") {
			t.Fatalf("%s: %s came before a comment", what, lines.Text())
		}
	}
	t.Fatalf("%s: the stream ended: %v", what, lines.Err())
}
