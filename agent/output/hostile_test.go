package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// Clients can follow the events for lines in any order.
func TestShuffled(t *testing.T) {
	claude := []string{"claude-tools", "claude-partial", "claude-cut", "claude-subagent", "claude-server-tools", "claude-hostile", "claude-max-turns"}
	for format, names := range map[string][]string{"claude": claude, "codex": {"codex-tools", "codex-failed", "codex-broken"}} {
		var all [][]byte
		for _, name := range names {
			all = append(all, readLines(t, name)...)
		}
		for seed := range uint64(60) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			some := make([][]byte, 60)
			for i := range some {
				some[i] = all[rnd.IntN(len(all))]
			}
			end := runEnd{exit: atoll.Exit{Code: rnd.IntN(2)}}
			step, sum := parseLines(t, format, some, end)
			checkStep(t, step, sum)
			if again, s := parseLines(t, format, some, end); formatGolden(t, again, s) != formatGolden(t, step, sum) {
				t.Fatalf("%s, seed %d: the same lines gave something else", format, seed)
			}
		}
	}
}

// assistantLine returns a line of claude with one block.
func assistantLine(id string, block map[string]any) []byte {
	line, err := json.Marshal(map[string]any{"type": "assistant", "message": map[string]any{"id": id, "content": []any{block}}})
	if err != nil {
		panic(err)
	}
	return line
}

func TestMessagesAreBounded(t *testing.T) {
	megabyte := strings.Repeat("ä", 1<<19)
	textLine := assistantLine("m", map[string]any{"type": "text", "text": megabyte})
	callLine := func(i int) []byte {
		return assistantLine("m", map[string]any{"type": "tool_use", "id": fmt.Sprint("t", i), "name": "Write", "input": map[string]any{"content": megabyte}})
	}
	results := map[string]any{"type": "user", "message": map[string]any{"content": []any{
		map[string]any{"type": "tool_result", "tool_use_id": "t0", "content": strings.Repeat(megabyte, 7)},
		map[string]any{"type": "tool_result", "tool_use_id": "t1", "content": strings.Repeat(megabyte, 2)},
		map[string]any{"type": "tool_result", "tool_use_id": "t2", "content": "no room"},
	}}}
	resultLine, err := json.Marshal(results)
	if err != nil {
		t.Fatal(err)
	}
	var in [][]byte
	for range 10 {
		in = append(in, textLine)
	}
	in = append(in, callLine(0), callLine(1), callLine(2), resultLine, []byte("stray"))
	step, sum := parseLines(t, "claude", in, runEnd{})
	checkStep(t, step, sum)
	if len(step.Messages) != 3 {
		t.Fatalf("got %d messages", len(step.Messages))
	}
	m := step.Messages[0]
	if want := strings.Repeat(megabyte, 8) + cutNote; m.Body != want {
		t.Errorf("the body has %d bytes and ends with %q, want %d", len(m.Body), cutTail(m.Body, 60), len(want))
	}
	if len(m.ToolCalls) != 3 || string(m.ToolCalls[2].Input) != quoteJSON(strings.TrimSpace(cutNote)) {
		t.Errorf("%d calls, the last with %.80s", len(m.ToolCalls), m.ToolCalls[len(m.ToolCalls)-1].Input)
	}
	out := step.Messages[1].ToolCalls
	if len(out[0].Output) != 7<<20 || out[1].Output != megabyte+cutNote || out[2].Output != cutNote {
		t.Errorf("outputs of %d, %d, %d bytes", len(out[0].Output), len(out[1].Output), len(out[2].Output))
	}
	var shown int
	for _, e := range step.Events {
		if e.Type == TextDelta {
			shown += len(e.Delta)
		}
	}
	if want := 10<<20 + len("stray\n"); shown != want {
		t.Errorf("shown: %d bytes, want all %d", shown, want)
	}
}

// Blocks that are streamed without an end share one bound.
func TestStreamedInputsAreBounded(t *testing.T) {
	p := newClaude()
	piece := strings.Repeat("x", 1<<20)
	for lane := range 100 {
		parent := fmt.Sprint("t", lane)
		p.Line(fmt.Appendf(nil, `{"type":"stream_event","parent_tool_use_id":%q,"event":{"type":"message_start","message":{"id":"m"}}}`, parent))
		for i := range 70 {
			p.Line(fmt.Appendf(nil, `{"type":"stream_event","parent_tool_use_id":%q,"event":{"type":"content_block_start","index":%d,"content_block":{"type":"tool_use","id":"%d-%d","name":"W"}}}`, parent, i, lane, i))
		}
		if lane >= 10 {
			continue
		}
		p.Line(fmt.Appendf(nil, `{"type":"stream_event","parent_tool_use_id":%q,"event":{"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"%s"}}}`, parent, piece))
	}
	if p.streaming != maxMessage || len(p.threads) != maxThreads+1 {
		t.Errorf("%d bytes in %d lanes", p.streaming, len(p.threads))
	}
	for _, l := range p.threads {
		if len(l.blocks) > maxBlocks {
			t.Errorf("%d blocks", len(l.blocks))
		}
	}
	step := p.End(atoll.Exit{}, "", nil)
	if p.streaming != 0 || step.Events[len(step.Events)-1].Type != Finish {
		t.Errorf("%d bytes are left", p.streaming)
	}
}

// Of too many calls without results some are forgotten, but they still have names.
func TestCallsWithoutResults(t *testing.T) {
	var in [][]byte
	for i := range 3 * maxOpen {
		in = append(in, assistantLine("m", map[string]any{"type": "tool_use", "id": fmt.Sprint("t", i), "name": "Bash"}))
	}
	step, sum := parseLines(t, "claude", in, runEnd{})
	checkStep(t, step, sum)
	if n := len(step.Messages[0].ToolCalls); n != maxOpen {
		t.Errorf("got %d calls, want %d", n, maxOpen)
	}
	in = nil
	for i := range 3 * maxTexts {
		in = append(in, fmt.Appendf(nil, `{"type":"item.started","item":{"id":"i%d","type":"agent_message","text":"a"}}`, i))
	}
	step, sum = parseLines(t, "codex", in, runEnd{})
	checkStep(t, step, sum)
	if want := strings.Repeat("a", 3*maxTexts); sum.Text != want {
		t.Errorf("got %q, want %q", sum.Text, want)
	}
}

func TestDeepAndInvalid(t *testing.T) {
	deep := append(bytes.Repeat([]byte(`{"type":`), 20000), bytes.Repeat([]byte("}"), 20000)...)
	tests := []struct{ name, line, want string }{
		{"deep", string(deep), string(deep)},
		{"not UTF-8", "caf\xe9", "caf\uFFFD"},
		{"not UTF-8 in JSON", `{"type":"assistant","message":{"content":"caf` + "\xe9" + `"}}`, "caf\uFFFD"},
		{"half a pair", `{"type":"assistant","message":{"content":"\ud83d"}}`, "\uFFFD"},
		{"after a sequence that does not end", "\x1b]0;title hello", "0;title hello"},
		{"before a lone escape", "hello\x1b", "hello"},
		{"charset", "\x1b(Bhello\x1b7", "hello"},
		{"title", "\x1b]0;t\x1b\\hello\x1bPq\x07", "hello"},
		{"broken CSI", "\x1b[31\x01hello\x1b[", "hello"},
		{"broken string", "\x1b]0\x01hello", "hello"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			step, sum := parseLines(t, "claude", [][]byte{[]byte(test.line)}, runEnd{})
			checkStep(t, step, sum)
			if sum.Text != test.want {
				t.Errorf("got %.80q, want %.80q", sum.Text, test.want)
			}
		})
	}
}

// A result may arrive while the model's message is still streamed.
func TestResultsWhileStreaming(t *testing.T) {
	event := func(e string) []byte { return []byte(`{"type":"stream_event","event":` + e + `}`) }
	step, sum := parseLines(t, "claude", [][]byte{
		event(`{"type":"message_start","message":{"id":"m"}}`),
		event(`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"Bash"}}`),
		assistantLine("m", map[string]any{"type": "tool_use", "id": "a", "name": "Bash", "input": map[string]any{"n": 1}}),
		event(`{"type":"content_block_stop","index":0}`),
		event(`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"b","name":"Bash"}}`),
		event(`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"n\""}}`),
		[]byte(`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"a","content":"one"}]}}`),
		event(`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":":2}"}}`),
		assistantLine("m", map[string]any{"type": "tool_use", "id": "b", "name": "Bash", "input": map[string]any{"n": 2}}),
		event(`{"type":"content_block_stop","index":1}`),
		[]byte(`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"b","content":"two"}]}}`),
	}, runEnd{})
	checkStep(t, step, sum)
	var got []string
	for _, m := range step.Messages {
		for _, c := range m.ToolCalls {
			got = append(got, fmt.Sprint(m.Role, " ", c.ID, string(c.Input), c.Output))
		}
	}
	want := []string{`assistant a{"n":1}`, "tool aone", `assistant b{"n":2}`, "tool btwo"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
