// Package webclient runs the clients of web pages that users have, for tests of what they get from a
// server: the AI SDK's chats, and an EventSource.
package webclient

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

//go:embed client.mjs
var program []byte

// An Order says which client to run, and its input.
type Order struct {
	Client string `json:"client"` // read, send, resume, chat or events
	API    string `json:"api,omitempty"`
	Token  string `json:"token,omitempty"`
	ChatID string `json:"chatId,omitempty"`
	Body   any    `json:"body,omitempty"` // additional fields of requests
	// Streams are the bodies of responses for read, which prints a last line for each.
	Streams    []string `json:"streams,omitempty"`
	Trigger    string   `json:"trigger,omitempty"`
	Messages   []any    `json:"messages,omitempty"` // for send
	MessageID  string   `json:"messageId,omitempty"`
	Texts      []string `json:"texts"`                // for chat, which sends one after the other
	Regenerate bool     `json:"regenerate,omitempty"` // at the end of chat
}

// A Line is one line that a client prints. The last one has End.
type Line struct {
	End      bool
	Message  json.RawMessage   // a state of the answer
	Messages []json.RawMessage // all messages of a chat
	Status   any               // of a chat, or of a response to an EventSource
	Event    *string           // of an EventSource
	Nothing  bool              // there was nothing to resume
	Errors   []string          // errors in the stream, or of the chat
	Failed   string            // the error of the request
	Finishes []struct{ IsAbort, IsError, IsDisconnect bool }
}

// A Client is a client that runs.
type Client struct {
	t      testing.TB
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	stderr bytes.Buffer
}

// Start starts a client, which ends with the test. It needs testenv.WebClients.
func Start(t testing.TB, order Order) *Client {
	t.Helper()
	node, modules := testenv.WebModules(t)
	path := filepath.Join(t.TempDir(), "client.mjs")
	if err := os.WriteFile(path, program, 0o600); err != nil {
		t.Fatal(err)
	}
	input, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	c := &Client{t: t, cmd: exec.CommandContext(t.Context(), node, path, modules)}
	c.cmd.Stdin, c.cmd.Stderr = bytes.NewReader(input), &c.stderr
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // fails if it has ended
		_ = c.cmd.Wait()         // fails if it was killed
	})
	c.lines = bufio.NewScanner(out)
	c.lines.Buffer(nil, 64<<20)
	return c
}

// Next returns the next line.
func (c *Client) Next() Line {
	c.t.Helper()
	if !c.lines.Scan() {
		c.t.Fatalf("the client has ended: %v\n%s", c.lines.Err(), &c.stderr)
	}
	var l Line
	if err := json.Unmarshal(c.lines.Bytes(), &l); err != nil {
		c.t.Fatalf("%s: %v", c.lines.Bytes(), err)
	}
	return l
}

// Await returns the first line from now on whose message or event contains text.
func (c *Client) Await(text string) Line {
	c.t.Helper()
	for {
		l := c.Next()
		if strings.Contains(string(l.Message), text) || l.Event != nil && strings.Contains(*l.Event, text) {
			return l
		}
		if l.End {
			c.t.Fatalf("the client ended without %q: %+v", text, l)
		}
	}
}

// Last returns the last line, or the next last line of read.
func (c *Client) Last() Line {
	c.t.Helper()
	for {
		if l := c.Next(); l.End {
			return l
		}
	}
}
