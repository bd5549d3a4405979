package mcp_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testsession"
	"github.com/seed46cd37a8/atoll/server/mcp"
)

// A rawStream is a response to a request, as a stream of events.
type rawStream struct {
	t      *testing.T
	lines  *bufio.Scanner
	lastID string // of the last event read
	cancel context.CancelFunc
	body   io.Closer
}

// openStream calls a tool in c's session, or resumes the stream after lastID.
func openStream(c *client, url, call, lastID string) *rawStream {
	c.t.Helper()
	method, body := "POST", io.Reader(strings.NewReader(call))
	if lastID != "" {
		method, body = "GET", nil
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		c.t.Fatal(err)
	}
	for name, value := range map[string]string{"Mcp-Session-Id": c.ID(), "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-11-25"} {
		req.Header.Set(name, value)
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%s: %s", method, resp.Status)
	}
	s := &rawStream{t: c.t, lines: bufio.NewScanner(resp.Body), lastID: lastID, cancel: cancel, body: resp.Body}
	c.t.Cleanup(s.drop)
	return s
}

// drop breaks the connection.
func (s *rawStream) drop() {
	s.cancel()
	s.body.Close()
}

// next returns the next line with a prefix, and notes the ids before it.
func (s *rawStream) next(prefix string) string {
	s.t.Helper()
	for s.lines.Scan() {
		line := s.lines.Text()
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			s.lastID = id
		}
		if strings.HasPrefix(line, prefix) {
			return line
		}
	}
	s.t.Fatalf("the stream ended before %q: %v", prefix, s.lines.Err())
	return ""
}

// A call goes on when its connection breaks, for a client that resumes the stream in time and gets the answer.
func TestResume(t *testing.T) {
	s := newServer(t, testsession.Open(t), tools.Options{}, mcp.Options{})
	patience := testenv.Scale(time.Second)
	mcp.ResumeTime(s, patience)
	mcp.PingEvery(s, patience/10)
	server := serveHTTP(t, s)
	c := dialHTTP(t, server.URL, nil)
	c.wantFields("sandbox_exec", m{"command": "mkfifo begun go"})
	// The client numbers its calls, and this id must not be one of its numbers.
	call := `{"jsonrpc":"2.0","id":"first","method":"tools/call","params":{"name":"sandbox_exec","arguments":{"command":"echo $$ > begun; cat go"}}}`

	stream := openStream(c, server.URL, call, "")
	stream.next("id: ")
	first := stream.lastID
	c.call("sandbox_exec", m{"command": "cat begun"})
	stream.drop()
	// The second stream stays open, silent, for longer than a call waits without one.
	stream = openStream(c, server.URL, call, stream.lastID)
	for open := time.Now().Add(2 * patience); time.Now().Before(open); {
		stream.next(": ping")
	}
	// The third takes the place of the second, which the server may still take for alive.
	stream = openStream(c, server.URL, call, stream.lastID)
	c.call("sandbox_exec", m{"command": "echo the answer > go"})
	if answer := stream.next("data: {"); !strings.Contains(answer, `"id":"first"`) || !strings.Contains(answer, "the answer") {
		t.Errorf("the answer is %s", answer)
	}
	// It can be read again.
	again := openStream(c, server.URL, call, first)
	if answer := again.next("data: {"); !strings.Contains(answer, "the answer") {
		t.Errorf("again: %s", answer)
	}

	stream = openStream(c, server.URL, strings.Replace(call, "first", "second", 1), "")
	pid := strings.TrimSpace(c.call("sandbox_exec", m{"command": "cat begun"})["stdout"].(string))
	stream.drop()
	c.waitGone(pid)
}
