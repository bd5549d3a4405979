package uistream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/output"
	"github.com/seed46cd37a8/atoll/agent/uistream"
	"github.com/seed46cd37a8/atoll/internal/testing/webclient"
)

var update = flag.Bool("update", false, "write testdata/*.golden")

// turnOf returns the events of a turn with the agent's output in a transcript.
func turnOf(t testing.TB, path string, exit atoll.Exit, stderr string, end error) []agent.TurnEvent {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	format, _, _ := strings.Cut(filepath.Base(path), "-")
	p, err := output.New(format)
	if err != nil {
		t.Fatal(err)
	}
	var all []output.Event
	for line := range bytes.SplitSeq(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) {
		all = append(all, p.Line(line).Events...)
	}
	return numbered(t, append(all, p.End(exit, stderr, end).Events...))
}

// numbered returns the events as those of a turn, behind its start.
func numbered(t testing.TB, events []output.Event) []agent.TurnEvent {
	t.Helper()
	turn := []agent.TurnEvent{{ID: "turn1:1", Data: []byte(`{"type":"stream-start","conversationId":"c","sandboxId":"s","turnId":"turn1","warnings":[]}`)}}
	for i, e := range events {
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		turn = append(turn, agent.TurnEvent{ID: fmt.Sprintf("turn1:%d", i+2), Data: data})
	}
	return turn
}

// encode returns the body of a response with the events.
func encode(t testing.TB, turn []agent.TurnEvent, end error) string {
	t.Helper()
	var enc uistream.Encoder
	var body strings.Builder
	send := func(chunks [][]byte) {
		for _, c := range chunks {
			fmt.Fprintf(&body, "data: %s\n\n", c)
		}
	}
	for _, e := range turn {
		chunks, err := enc.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		send(chunks)
	}
	send(enc.End(end))
	return body.String()
}

// read returns what the AI SDK makes of each body of a response.
func read(t testing.TB, bodies ...string) (all []webclient.Line) {
	t.Helper()
	c := webclient.Start(t, webclient.Order{Client: "read", Streams: bodies})
	for range bodies {
		all = append(all, c.Last())
	}
	return all
}

// The AI SDK reads what all agents print: its schema accepts each event, and its message has all
// texts, thoughts and tools.
func TestTranscripts(t *testing.T) {
	paths, err := filepath.Glob("../output/testdata/*.jsonl")
	if err != nil || len(paths) < 15 {
		t.Fatalf("%d transcripts, %v", len(paths), err)
	}
	var turns [][]agent.TurnEvent
	var bodies []string
	for _, path := range paths {
		exit := atoll.Exit{}
		for _, failed := range []string{"login", "logged-in", "max-turns", "hostile", "cut", "failed", "broken"} {
			if strings.HasSuffix(path, failed+".jsonl") {
				exit.Code = 1
			}
		}
		turn := turnOf(t, path, exit, "it printed <this>\n", nil)
		turns, bodies = append(turns, turn), append(bodies, encode(t, turn, nil))
	}
	for i, got := range read(t, bodies...) {
		name := strings.TrimSuffix(filepath.Base(paths[i]), ".jsonl")
		t.Run(name, func(t *testing.T) {
			checkMessage(t, turns[i], got)
			formatted := formatResult(t, got)
			golden := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(golden, formatted, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(formatted, want) {
				t.Errorf("got\n%s\nwant\n%s", formatted, want)
			}
		})
	}
}

// formatResult returns the SDK's message and errors, indented.
func formatResult(t testing.TB, got webclient.Line) []byte {
	t.Helper()
	out, err := json.MarshalIndent(map[string]any{"message": got.Message, "errors": got.Errors}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return append(out, '\n')
}

// A uiMessage is the message that the SDK makes.
type uiMessage struct {
	ID    string
	Parts []struct {
		Type, Text, State, ToolCallID, ErrorText string
	}
	Metadata struct{ ConversationID, FinishReason string }
}

func messageOf(t testing.TB, l webclient.Line) (m uiMessage) {
	t.Helper()
	if err := json.Unmarshal(l.Message, &m); err != nil {
		t.Fatalf("%s: %v", l.Message, err)
	}
	return m
}

// checkMessage checks that the SDK's message has what the events say.
func checkMessage(t testing.TB, turn []agent.TurnEvent, got webclient.Line) {
	t.Helper()
	want, errors := map[string]string{}, []string{}
	results := map[string]bool{} // ids of tools that returned
	for _, e := range turn {
		var ev output.Event
		if err := json.Unmarshal(e.Data, &ev); err != nil {
			t.Fatal(err)
		}
		switch ev.Type {
		case output.TextDelta, output.ReasoningDelta:
			kind, _, _ := strings.Cut(string(ev.Type), "-")
			want[kind] += ev.Delta
		case output.Error:
			errors = append(errors, ev.Error)
		case output.ToolResult, output.ToolError:
			results[ev.ToolCallID] = true
		}
	}
	m := messageOf(t, got)
	for _, p := range m.Parts {
		if p.Type == "dynamic-tool" {
			if p.State != "output-available" && p.State != "output-error" {
				t.Errorf("tool %s is left in the state %s", p.ToolCallID, p.State)
			}
			if p.ErrorText != "the turn ended before this tool returned" {
				delete(results, p.ToolCallID)
			}
		} else if p.State == "streaming" {
			t.Errorf("a %s is left open: %q", p.Type, p.Text)
		}
	}
	for kind, text := range want {
		// Texts of subagents come between others, so only the length is that of the events.
		n := 0
		for _, p := range m.Parts {
			if p.Type == kind {
				n += len(p.Text)
			}
		}
		if n != len(text) {
			t.Errorf("the message has %d bytes of %s, want %d", n, kind, len(text))
		}
	}
	if fmt.Sprint(got.Errors) != fmt.Sprint(errors) || got.Failed != "" {
		t.Errorf("errors %q %s, want %q", got.Errors, got.Failed, errors)
	}
	if m.ID != "turn1" || m.Metadata.ConversationID != "c" || m.Metadata.FinishReason == "" || len(results) > 0 {
		t.Errorf("id %s, metadata %+v; results are missing: %v", m.ID, m.Metadata, results)
	}
}

// A turn that was cancelled, and a stream that the server ends, end in the SDK's terms.
func TestEnds(t *testing.T) {
	turn := turnOf(t, "../output/testdata/claude-cut.jsonl", atoll.Exit{}, "", context.Canceled)
	cancelled := encode(t, turn, nil)
	if !strings.Contains(cancelled, `{"type":"abort"}`) || strings.Contains(cancelled, `"type":"finish"`) {
		t.Errorf("a cancelled turn:\n%s", cancelled)
	}
	got := read(t, cancelled, encode(t, turn[:4], atoll.Errorf("", "", atoll.ErrUnavailable, "the server closes")))
	if m := messageOf(t, got[0]); m.Metadata.FinishReason != "cancelled" || len(got[0].Errors) > 0 {
		t.Errorf("a cancelled turn: %+v, %q", m, got[0].Errors)
	}
	if !strings.Contains(fmt.Sprint(got[1].Errors), "the server closes") || messageOf(t, got[1]).Parts == nil {
		t.Errorf("a stream that ends early: %+v", got[1])
	}
	if got := encode(t, nil, nil); got != "data: [DONE]\n\n" {
		t.Errorf("no events: %q", got)
	}
}

// A stream is whole from any event on: the oldest events of a long turn expire.
func TestLateStart(t *testing.T) {
	var bodies []string
	for _, name := range []string{"claude-partial", "claude-subagent", "codex-tools"} {
		turn := turnOf(t, "../output/testdata/"+name+".jsonl", atoll.Exit{}, "", nil)
		for from := 1; from < len(turn); from++ {
			bodies = append(bodies, encode(t, turn[from:], nil))
		}
	}
	for i, got := range read(t, bodies...) {
		if got.Failed != "" || len(got.Errors) > 0 || messageOf(t, got).ID != "turn1" {
			t.Errorf("%s %q:\n%s", got.Failed, got.Errors, bodies[i])
		}
	}
}

func TestPrompt(t *testing.T) {
	user := func(parts ...uistream.Part) []uistream.Message {
		return []uistream.Message{{Role: "system"}, {Role: "user", Parts: parts}}
	}
	text := uistream.Part{Type: "text", Text: "a"}
	got, err := uistream.PromptOf(uistream.Request{Messages: user(text, uistream.Part{Type: "text", Text: "b"}), Trigger: uistream.SubmitMessage})
	if got != "a\nb" || err != nil {
		t.Errorf("two texts: %q, %v", got, err)
	}
	for name, test := range map[string]struct {
		request uistream.Request
		kind    atoll.Kind
		want    string
	}{
		"none":      {uistream.Request{Messages: []uistream.Message{}}, atoll.ErrInvalid, "there are none"},
		"assistant": {uistream.Request{Messages: append(user(text), uistream.Message{Role: "assistant", Parts: []uistream.Part{text}})}, atoll.ErrInvalid, `role "assistant"`},
		"content":   {uistream.Request{Messages: user()}, atoll.ErrInvalid, "no parts"},
		"file":      {uistream.Request{Messages: user(text, uistream.Part{Type: "file"})}, atoll.ErrUnsupported, `type "file"`},
		"trigger":   {uistream.Request{Messages: user(text), Trigger: "x"}, atoll.ErrInvalid, `trigger "x"`},
	} {
		if _, err := uistream.PromptOf(test.request); atoll.KindOf(err) != test.kind || !strings.Contains(fmt.Sprint(err), test.want) {
			t.Errorf("%s: %v, want %s with %q", name, err, test.kind, test.want)
		}
	}
	var m uistream.Message
	err = json.Unmarshal([]byte(`{"id":"1","role":"user","metadata":{"x":1},"parts":[{"type":"text","text":"hi","state":"done"}]}`), &m)
	if err != nil || m.Parts[0].Text != "hi" {
		t.Errorf("fields of the client: %+v, %v", m, err)
	}
}
