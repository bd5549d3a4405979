package output

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

var update = flag.Bool("update", false, "write testdata/*.golden")

// readLines reads a transcript.
func readLines(t testing.TB, name string) [][]byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
}

// newParser returns a new parser.
func newParser(t testing.TB, format string) Parser {
	t.Helper()
	p, err := New(format)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A runEnd holds the arguments of End.
type runEnd struct {
	exit   atoll.Exit
	stderr string
	err    error
}

// parseLines parses all lines, and returns the results.
func parseLines(t testing.TB, format string, lines [][]byte, end runEnd) (Step, Summary) {
	t.Helper()
	p := newParser(t, format)
	var all Step
	for _, line := range lines {
		lent := slices.Clone(line)
		step := p.Line(lent)
		clear(lent) // the parser must not retain it
		all.Events = append(all.Events, step.Events...)
		all.Messages = append(all.Messages, step.Messages...)
	}
	step := p.End(end.exit, end.stderr, end.err)
	all.Events = append(all.Events, step.Events...)
	all.Messages = append(all.Messages, step.Messages...)
	return all, p.Summary()
}

// formatGolden formats a step as in the golden files.
func formatGolden(t testing.TB, s Step, sum Summary) string {
	t.Helper()
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	encode := func(v any) {
		if err := enc.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range s.Events {
		encode(e)
	}
	out.WriteByte('\n')
	for _, m := range s.Messages {
		fmt.Fprintf(&out, "%s in=%d out=%d cache=%d\n", m.Role, m.Tokens.Input, m.Tokens.Output, m.Tokens.Cache)
		if m.Body != "" {
			fmt.Fprintf(&out, "  | %s\n", strings.ReplaceAll(m.Body, "\n", "\n  | "))
		}
		for _, c := range m.ToolCalls {
			out.WriteString("  ")
			encode(c)
		}
	}
	out.WriteByte('\n')
	encode(sum)
	return out.String()
}

func TestGolden(t *testing.T) {
	failed := runEnd{exit: atoll.Exit{Code: 1, Duration: atoll.Duration(1500 * time.Millisecond)}}
	tests := []struct {
		name string
		end  runEnd
	}{
		{"claude-tools", runEnd{}},
		{"claude-partial", runEnd{}},
		{"claude-cut", runEnd{exit: atoll.Exit{Code: 137, Signal: atoll.SIGKILL, Reason: "out of memory"}}},
		{"claude-subagent", runEnd{}},
		{"claude-server-tools", runEnd{}},
		{"claude-login", failed},
		{"claude-not-logged-in", failed},
		{"claude-max-turns", failed},
		{"claude-terminal", runEnd{}},
		{"claude-slash", runEnd{}},
		{"claude-hostile", failed},
		{"codex-tools", runEnd{}},
		{"codex-failed", failed},
		{"codex-broken", failed},
		{"text-lines", runEnd{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			format, _, _ := strings.Cut(test.name, "-")
			step, sum := parseLines(t, format, readLines(t, test.name), test.end)
			checkStep(t, step, sum)
			got, path := formatGolden(t, step, sum), filepath.Join("testdata", test.name+".golden")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if again, sum := parseLines(t, format, readLines(t, test.name), test.end); formatGolden(t, again, sum) != got {
				t.Error("the same lines gave something else")
			}
		})
	}
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) != len(tests) {
		t.Errorf("%d transcripts for %d tests, %v", len(files), len(tests), err)
	}
}

// checkStep checks the guarantees that clients rely on for any output.
func checkStep(t testing.TB, s Step, sum Summary) {
	t.Helper()
	open, used, calls := map[string]EventType{}, map[string]bool{}, map[string]bool{}
	for i, e := range s.Events {
		if len(e.Delta)+len(e.Input)+len(e.Result) < 64<<10 { // checking larger ones takes too long
			data, err := json.Marshal(e)
			var back Event
			if err != nil || json.Unmarshal(data, &back) != nil || back.Type != e.Type {
				t.Fatalf("event %d %+v: %v", i, e, err)
			}
		}
		key := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(string(e.Type), "-start"), "-delta"), "-end") + " " + e.ID
		shown := e.Error + e.ToolName + e.ID + e.ToolCallID
		if e.Type != ToolInputDelta {
			shown += e.Delta // inputs are data
		}
		if strings.ContainsFunc(shown, isControl) {
			t.Fatalf("event %d has control characters: %+v", i, e)
		}
		switch e.Type {
		case TextStart, ReasoningStart, ToolInputStart:
			if open[key] != "" || e.Type != ToolInputStart && used[key] || e.ID == "" {
				t.Fatalf("event %d: %s begins twice", i, key)
			}
			open[key], used[key] = e.Type, true
		case TextDelta, ReasoningDelta, ToolInputDelta:
			if open[key] == "" || e.Delta == "" {
				t.Fatalf("event %d: %+v: not open, or empty", i, e)
			}
		case TextEnd, ReasoningEnd, ToolInputEnd:
			if open[key] == "" {
				t.Fatalf("event %d: %s ends and is not open", i, key)
			}
			delete(open, key)
		case ToolCall:
			calls[e.ToolCallID] = true
			if !json.Valid([]byte(e.Input)) || e.ToolName == "" || open["tool-input "+e.ToolCallID] != "" {
				t.Fatalf("event %d: %+v", i, e)
			}
		case ToolResult, ToolError:
			if !calls[e.ToolCallID] || e.ToolName == "" || (e.Type == ToolError) != (e.Error != "") || (e.Type == ToolResult) != (e.Result != nil) {
				t.Fatalf("event %d: %+v", i, e)
			}
		case Error:
			if e.Error == "" || i != len(s.Events)-2 || e.Error != sum.Error {
				t.Fatalf("event %d: %+v", i, e)
			}
		case Finish:
			if i != len(s.Events)-1 || e.FinishReason == "" || e.FinishReason != sum.FinishReason || e.Usage == nil || e.Metadata == nil {
				t.Fatalf("event %d of %d: %+v", i, len(s.Events), e)
			}
		default:
			t.Fatalf("event %d: type %q", i, e.Type)
		}
	}
	if n := len(s.Events); n == 0 || s.Events[n-1].Type != Finish || len(open) > 0 {
		t.Fatalf("no finish, or open: %v", open)
	}
	var kept agent.TokenUsage
	for i, m := range s.Messages {
		kept.Add(m.Tokens)
		size := len(m.Body)
		for _, c := range m.ToolCalls {
			size += len(c.Input) + len(c.Output)
			if c.ID == "" || c.Name == "" || c.Type != "function" || c.Status == "" || len(c.Input) > 0 && !json.Valid(c.Input) {
				t.Fatalf("message %d: call %+v", i, c)
			}
		}
		if _, err := json.Marshal(m); err != nil || size > maxMessage+maxOpen*100 || m.Role != agent.RoleAssistant && m.Role != agent.RoleTool || m.Body == "" && len(m.ToolCalls) == 0 || strings.ContainsFunc(m.Body, isControl) {
			t.Fatalf("message %d: %d bytes, %v, %+v", i, size, err, m)
		}
	}
	if rest := excessTokens(sum.Usage, kept); rest != sum.Rest {
		t.Fatalf("rest: got %v, want %v", sum.Rest, rest)
	}
}

func TestNewRefusesUnknown(t *testing.T) {
	if _, err := New("gemini"); !errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), "claude, codex or text") {
		t.Errorf("got %v", err)
	}
	for _, format := range Formats() {
		if newParser(t, format) == nil || len(Formats()) != len(formats) || !slices.IsSorted(Formats()) {
			t.Errorf("%s of %v", format, Formats())
		}
	}
}

func TestEnd(t *testing.T) {
	ok := `{"type":"result","subtype":"success","is_error":false,"result":"hi","stop_reason":"%s"}`
	bad := `{"type":"result","subtype":"%s","is_error":true,"result":"%s"}`
	tests := []struct {
		name, format, line string
		end                runEnd
		reason             FinishReason
		failure            string
	}{
		{"text", "text", "x", runEnd{}, FinishStop, ""},
		{"text fails", "text", "oh no", runEnd{exit: atoll.Exit{Code: 2}}, FinishError, "exited with code 2: oh no"},
		{"nothing at all", "claude", "", runEnd{}, FinishOther, ""},
		{"nothing but an exit", "claude", "", runEnd{exit: atoll.Exit{Code: 3}}, FinishError, "exited with code 3"},
		{"stderr", "claude", "x", runEnd{exit: atoll.Exit{Code: 1}, stderr: "\x1b[31mNo conversation found to continue\x1b[0m\n"}, FinishError, "exited with code 1: No conversation found to continue"},
		{"long stderr", "text", "", runEnd{exit: atoll.Exit{Code: 1}, stderr: strings.Repeat("ü", 5000) + "!"}, FinishError, "exited with code 1: " + strings.Repeat("ü", 2047) + "!"},
		{"many lines of stderr", "text", "", runEnd{exit: atoll.Exit{Code: 1}, stderr: strings.Repeat("x", 1<<10) + strings.Repeat("\n"+strings.Repeat("y", 1023), 4)}, FinishError,
			"exited with code 1: " + strings.TrimSpace(strings.Repeat(strings.Repeat("y", 1023)+"\n", 3)+strings.Repeat("y", 1023))},
		{"API error and stderr", "claude", fmt.Sprintf(bad, "success", "API Error: 529"), runEnd{exit: atoll.Exit{Code: 1}, stderr: "\x1b[1mproxy\x07 refused\r\n"}, FinishError, "API Error: 529\nstderr: proxy refused"},
		{"API error, twice", "claude", fmt.Sprintf(bad, "success", "API Error: 529"), runEnd{exit: atoll.Exit{Code: 1}, stderr: "API Error: 529\n"}, FinishError, "API Error: 529"},
		{"a turn failed with stderr", "codex", `{"type":"turn.failed","error":{"message":"x"}}`, runEnd{exit: atoll.Exit{Code: 1}, stderr: "why"}, FinishError, "x\nstderr: why"},
		{"error and stderr", "text", "x", runEnd{err: errors.New("sandbox is gone"), stderr: "why"}, FinishError, "sandbox is gone\nstderr: why"},
		{"limit and stderr", "claude", fmt.Sprintf(bad, "error_max_turns", ""), runEnd{stderr: "noise"}, FinishLength, "the agent had no more turns left"},
		{"success and stderr", "claude", fmt.Sprintf(ok, "end_turn"), runEnd{stderr: "noise"}, FinishStop, ""},
		{"killed", "codex", "", runEnd{exit: atoll.Exit{Code: 124, TimedOut: true}}, FinishError, "timed out"},
		{"cancelled", "claude", fmt.Sprintf(bad, "error_during_execution", ""), runEnd{exit: atoll.Exit{Code: 143}, err: fmt.Errorf("turn: %w", context.Canceled)}, FinishCancelled, ""},
		{"error", "claude", fmt.Sprintf(ok, "end_turn"), runEnd{err: errors.New("sandbox is gone\x07")}, FinishError, "sandbox is gone\uFFFD"},
		{"stop", "claude", fmt.Sprintf(ok, "end_turn"), runEnd{}, FinishStop, ""},
		{"stop, no reason", "claude", fmt.Sprintf(ok, ""), runEnd{}, FinishStop, ""},
		{"length", "claude", fmt.Sprintf(ok, "max_tokens"), runEnd{}, FinishLength, ""},
		{"tool", "claude", fmt.Sprintf(ok, "tool_use"), runEnd{}, FinishToolCalls, ""},
		{"refusal", "claude", fmt.Sprintf(ok, "refusal"), runEnd{}, FinishContentFilter, ""},
		{"pause", "claude", fmt.Sprintf(ok, "pause_turn"), runEnd{}, FinishOther, ""},
		{"well said, then failed", "claude", fmt.Sprintf(ok, "end_turn"), runEnd{exit: atoll.Exit{Code: 1}}, FinishError, "exited with code 1"},
		{"API error", "claude", fmt.Sprintf(bad, "success", "API Error: 529"), runEnd{exit: atoll.Exit{Code: 1}}, FinishError, "API Error: 529"},
		{"error without words", "claude", fmt.Sprintf(bad, "", ""), runEnd{}, FinishError, "the agent failed"},
		{"execution", "claude", fmt.Sprintf(bad, "error_during_execution", ""), runEnd{}, FinishError, "the agent failed: error_during_execution"},
		{"turns", "claude", fmt.Sprintf(bad, "error_max_turns", ""), runEnd{}, FinishLength, "the agent had no more turns left"},
		{"money", "claude", fmt.Sprintf(bad, "error_max_budget_usd", ""), runEnd{}, FinishLength, "the agent had no more money left"},
		{"a turn failed", "codex", `{"type":"turn.failed","error":{}}`, runEnd{}, FinishError, "the agent failed"},
		{"a turn failed after one", "codex", `{"type":"turn.completed"}` + "\n" + `{"type":"turn.failed","error":{"message":"x"}}`, runEnd{}, FinishError, "x"},
		{"overcome", "codex", `{"type":"error","message":"again"}` + "\n" + `{"type":"turn.completed"}`, runEnd{}, FinishStop, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			step, sum := parseLines(t, test.format, bytes.Split([]byte(test.line), []byte("\n")), test.end)
			checkStep(t, step, sum)
			if sum.FinishReason != test.reason || sum.Error != test.failure {
				t.Errorf("got %s %q, want %s %q", sum.FinishReason, sum.Error, test.reason, test.failure)
			}
		})
	}
}

func TestNothingAfterEnd(t *testing.T) {
	for _, format := range Formats() {
		p := newParser(t, format)
		p.Line([]byte("hello"))
		p.End(atoll.Exit{}, "", nil)
		if s := p.Line([]byte("late")); len(s.Events)+len(s.Messages) > 0 {
			t.Errorf("%s: a line after the end: %+v", format, s)
		}
		if s := p.End(atoll.Exit{Code: 1}, "", nil); len(s.Events) > 0 || p.Summary().Error != "" {
			t.Errorf("%s: a second end: %+v", format, s)
		}
	}
}
