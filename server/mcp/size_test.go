package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/agent/tools/settings"
	"github.com/seed46cd37a8/atoll/internal/testing/testsession"
	"github.com/seed46cd37a8/atoll/server/mcp"
)

// A wire speaks MCP over streams, and sees messages as they are.
type wire struct {
	t    *testing.T
	to   io.WriteCloser
	from *bufio.Reader
	id   int
}

func newWire(t *testing.T, s *mcp.Server) *wire {
	t.Helper()
	fromClient, toServer := io.Pipe()
	fromServer, toClient := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- s.Run(context.WithoutCancel(t.Context()), fromClient, toClient) }()
	w := &wire{t, toServer, bufio.NewReader(fromServer), 0}
	t.Cleanup(func() {
		toServer.Close()
		_, _ = io.Copy(io.Discard, fromServer)
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	w.send("initialize", m{"protocolVersion": "2025-06-18", "capabilities": m{}, "clientInfo": m{"name": "test", "version": "1"}})
	if _, err := io.WriteString(w.to, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	return w
}

// send sends a request, and returns the line of its answer.
func (w *wire) send(method string, params any) []byte {
	w.t.Helper()
	w.id++
	data, err := json.Marshal(m{"jsonrpc": "2.0", "id": w.id, "method": method, "params": params})
	if err == nil {
		_, err = w.to.Write(append(data, '\n'))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	line, err := w.from.ReadBytes('\n')
	if err != nil {
		w.t.Fatal(err)
	}
	return line
}

// An answer is the result of a tool, and the size of its message.
type answer struct {
	size int
	out  map[string]any // nil for an error
	text string
}

func (w *wire) call(tool string, input m) answer {
	w.t.Helper()
	line := w.send("tools/call", m{"name": tool, "arguments": input})
	var reply struct {
		Result struct {
			Content           []struct{ Text string }
			StructuredContent map[string]any
		}
	}
	if err := json.Unmarshal(line, &reply); err != nil || len(reply.Result.Content) != 1 {
		w.t.Fatalf("%s: %.300s: %v", tool, line, err)
	}
	return answer{len(line), reply.Result.StructuredContent, reply.Result.Content[0].Text}
}

// mostBytes is the limit of a message by default: the output as text and structured,
// each with its escapes, and what is around it.
const mostBytes = 7*settings.DefaultOutput + 2000

// The largest answer of each tool is one that a model can read, and the message around
// it is not much larger.
func TestAnswersAreSmall(t *testing.T) {
	p := testsession.Open(t)
	images := frontmatter.Images{Shortcuts: map[string]string{"": "host", "bash": "host"}}
	s := newServer(t, p, tools.Options{Images: images, OwnPrograms: true}, mcp.Options{})
	w := newWire(t, s)
	long := strings.Repeat("n", 200)
	if r := w.call("sandbox_exec", m{"command": `
		seq 1 2000000 > lines; head -c 3000000 /dev/zero > zeros; head -c 3000000 /dev/urandom > bytes; yes '<&>"\' | tr -d '\n' | head -c 3000000 > marks
		yes needle | head -n 100000 > needles; yes needle | tr -d '\n' | head -c 3000000 > needle
		mkdir many && cd many && seq -f "` + long + `%g" 1 3000 | xargs touch`}); r.out == nil {
		t.Fatal(r.text)
	}
	background := func(command string) any {
		r := w.call("sandbox_exec", m{"command": command, "background": true})
		if r.out == nil {
			t.Fatal(r.text)
		}
		id := r.out["process_id"]
		w.call("sandbox_process_wait", m{"process_id": id})
		return id
	}
	lines, both := background("cat lines"), background("cat bytes; cat bytes >&2")
	tests := []struct {
		tool string
		in   m
	}{
		{"sandbox_exec", m{"command": "cat lines; cat lines >&2"}},
		{"sandbox_exec", m{"command": "cat zeros; cat zeros >&2; exit 1"}},
		{"sandbox_exec", m{"command": "cat bytes; cat bytes >&2"}},
		{"sandbox_exec", m{"command": "cat marks; cat marks >&2"}},
		{"sandbox_exec", m{"command": "cat lines", "timeout_seconds": 60, "max_output": 1 << 30}},
		{"sandbox_process_read", m{"process_id": lines}},
		{"sandbox_process_read", m{"process_id": lines, "stdout_offset": 14000000}},
		{"sandbox_process_wait", m{"process_id": both}},
		{"sandbox_process_read", m{"process_id": strings.Repeat("x", 1<<20)}},
		{"sandbox_process_kill", m{"process_id": strings.Repeat("x", 1<<20)}},
		{"sandbox_process_kill", m{"process_id": lines, "signal": strings.Repeat("x", 1<<20)}},
		{"sandbox_process_write", m{"process_id": strings.Repeat("\x00", 1<<20)}},
		{"sandbox_fs_read", m{"path": "lines"}},
		{"sandbox_fs_read", m{"path": "zeros"}},
		{"sandbox_fs_read", m{"path": "bytes"}},
		{"sandbox_fs_read", m{"path": "bytes", "encoding": "base64"}},
		{"sandbox_fs_read", m{"path": "marks", "offset": 1000000}},
		{"sandbox_fs_read", m{"path": "lines", "max_bytes": 1 << 30}},
		{"sandbox_fs_read", m{"path": strings.Repeat("x/", 1<<19)}},
		{"sandbox_fs_list", m{"path": "many"}},
		{"sandbox_fs_list", m{"recursive": true}},
		{"sandbox_fs_list", m{"path": "many", "max_output": 1 << 30}},
		{"sandbox_fs_search", m{"name": "*", "max_results": 1000}},
		{"sandbox_fs_search", m{"content": "needle", "max_results": 1000}},
		{"sandbox_fs_search", m{"content": "needle", "max_results": 1000, "max_output": 1 << 30}},
		{"sandbox_fs_search", m{"content": "." + strings.Repeat("(", 4000)}},
		{"sandbox_fs_write", m{"path": strings.Repeat("x", 1<<20), "content": ""}},
		{"sandbox_fs_edit", m{"path": strings.Repeat("<", 1<<20), "old_text": "x", "new_text": ""}},
		{"sandbox_fs_delete", m{"path": strings.Repeat("x", 1<<20)}},
		{"sandbox_fs_read", m{strings.Repeat("x", 1<<20): 1, "path": "x"}},
		{"sandbox_open", m{"image": strings.Repeat("x", 1<<20)}},
		{"sandbox_port", m{"port": 1}},
		{"sandbox_run", m{"runtime": strings.Repeat("x", 1<<20), "code": ""}},
		{"sandbox_run", m{"runtime": "bash", "code": "", "files": m{strings.Repeat("x", 1<<20) + "/../..": ""}}},
		{"sandbox_run", m{"runtime": "bash", "code": "seq 1 1000000; seq 1 1000000 >&2; seq 1 1000000 > big; for i in $(seq 90); do seq 1 1000 > " + long + "$i; done"}},
		{"sandbox_run", m{"runtime": "bash", "code": "head -c 100000 /dev/zero | tee zeros; head -c 6000 /dev/urandom > bytes; head -c 5000 /dev/zero > few", "max_output": 1 << 30}},
		{"sandbox_close", m{}},
	}
	called := map[string]bool{}
	for _, tt := range tests {
		r := w.call(tt.tool, tt.in)
		called[tt.tool] = true
		most := mostBytes
		if tt.in["max_output"] != nil || tt.in["max_bytes"] != nil { // the largest that a call can ask for
			most = 5*tools.DefaultMaxOutput + 2000
		}
		text := settings.DefaultOutput
		if tt.in["max_output"] != nil || tt.in["max_bytes"] != nil {
			text = tools.DefaultMaxOutput
		}
		if tt.tool == "sandbox_run" { // its files have as much room as its output
			text *= 2
		}
		if len(r.text) > text+1000 {
			t.Errorf("%s %.100v: the text has %d bytes, more than %d", tt.tool, tt.in, len(r.text), text)
		}
		if name := fmt.Sprintf("%s %.100v", tt.tool, tt.in); r.size > most {
			t.Errorf("%s: the message has %d bytes, more than %d: %.300s", name, r.size, most, r.text)
		} else {
			t.Logf("%s: %d bytes", name, r.size)
		}
	}
	var listed struct {
		Result struct{ Tools []struct{ Name string } }
	}
	if err := json.Unmarshal(w.send("tools/list", m{}), &listed); err != nil {
		t.Fatal(err)
	}
	for _, tool := range listed.Result.Tools {
		if !called[tool.Name] {
			t.Errorf("no answer of %s was measured", tool.Name)
		}
	}
}
