package main_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/output"
	"github.com/seed46cd37a8/atoll/internal/testing/testagent/agenttest"
)

// An agentEnv is the environment of an agent: its program, directories and variables.
type agentEnv struct {
	program, dir, config string
	env                  []string
}

func newAgentEnv(t *testing.T) *agentEnv {
	return &agentEnv{program: agenttest.Path(t), dir: t.TempDir(), config: t.TempDir()}
}

func (b *agentEnv) command(t *testing.T, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), b.program, args...)
	cmd.Dir = b.dir
	cmd.Env = slices.Concat([]string{"PATH=" + os.Getenv("PATH"), "CLAUDE_CONFIG_DIR=" + b.config}, b.env)
	return cmd
}

// runAgent runs the agent and parses its output.
func (b *agentEnv) runAgent(t *testing.T, prompt string, flags ...string) ([]output.Event, []agent.Message, output.Summary) {
	t.Helper()
	args := slices.Concat([]string{"--dangerously-skip-permissions", "--verbose", "--output-format", "stream-json"}, flags, []string{"-p", prompt})
	cmd := b.command(t, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	p, err := output.New("claude")
	if err != nil {
		t.Fatal(err)
	}
	var events []output.Event
	var messages []agent.Message
	add := func(s output.Step) {
		events, messages = append(events, s.Events...), append(messages, s.Messages...)
	}
	for line := range bytes.Lines(out) {
		add(p.Line(bytes.TrimSuffix(line, []byte("\n"))))
	}
	add(p.End(atoll.Exit{Code: cmd.ProcessState.ExitCode()}, stderr.String(), nil))
	return events, messages, p.Summary()
}

func TestScript(t *testing.T) {
	b := newAgentEnv(t)
	b.env = []string{"FRUIT=pear"}
	_, messages, sum := b.runAgent(t, "think hm\nsay hello\nrun echo made > made.txt; cat made.txt\nrun echo no >&2; exit 3\npartial in several pieces, süß\nenv FRUIT\nenv NUT\nraw not JSON\nsleep 1ms\nwhat?")
	var got []string
	for _, m := range messages {
		got = append(got, strings.TrimSpace(string(m.Role)+" "+m.Body))
		for _, c := range m.ToolCalls {
			got = append(got, strings.TrimSpace(c.Status+" "+string(c.Input)+c.Output))
		}
	}
	want := []string{
		"assistant hello", `assistant`, `called {"command":"echo made \u003e made.txt; cat made.txt"}`, "tool", "completed made",
		"assistant", `called {"command":"echo no \u003e\u00262; exit 3"}`, "tool", "failed Exit code 3\nno",
		"assistant in several pieces, süß", "assistant FRUIT=pear", "assistant NUT is not set\n\nnot JSON", "assistant You said: what?",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	// 8 messages, of which the thought is dropped; and a token for each 4 bytes.
	if u := sum.Usage; u.Input != 800 || u.Cache != 240 || u.Output != 1+2+9+5+6+3+4+4 || sum.CostUSD != 0.008 || sum.FinishReason != output.FinishStop {
		t.Errorf("got %+v", sum)
	}
	if data, err := os.ReadFile(filepath.Join(b.dir, "made.txt")); err != nil || string(data) != "made\n" {
		t.Errorf("made.txt: %q, %v", data, err)
	}
}

func TestMemory(t *testing.T) {
	b := newAgentEnv(t)
	_, _, sum := b.runAgent(t, "say hello", "-c")
	if sum.FinishReason != output.FinishError || sum.Error != "exited with code 1: No conversation found to continue" {
		t.Errorf("-c with nothing: got %+v", sum)
	}
	_, _, first := b.runAgent(t, "say one")
	_, messages, second := b.runAgent(t, "say two", "-c")
	if len(messages) != 2 || messages[0].Body != "I remember 1 prompts." || second.SessionID != first.SessionID || len(first.SessionID) != 36 {
		t.Errorf("got %+v, session %q after %q", messages, second.SessionID, first.SessionID)
	}
	if _, messages, _ = b.runAgent(t, "say three", "-c"); messages[0].Body != "I remember 2 prompts." {
		t.Errorf("got %+v", messages)
	}
	if _, messages, sum = b.runAgent(t, "say new"); len(messages) != 1 || sum.SessionID == first.SessionID {
		t.Errorf("without -c: got %+v, session %q", messages, sum.SessionID)
	}
	files, err := filepath.Glob(filepath.Join(b.config, "projects", "*", first.SessionID+".jsonl"))
	if err != nil || len(files) != 1 {
		t.Errorf("got %q, %v", files, err)
	}
	b.config, b.env = t.TempDir(), []string{"TESTAGENT_CONTINUE=new"}
	if _, messages, sum = b.runAgent(t, "say hello", "-c"); len(messages) != 1 || sum.FinishReason != output.FinishStop {
		t.Errorf("-c with nothing, since 2.1: got %+v %+v", messages, sum)
	}
}

func TestFailures(t *testing.T) {
	tests := []struct{ prompt, want string }{
		{"say a\nfail overloaded\nsay b", "API Error: overloaded"},
		{"say a\ncrash\nsay b", "exited with code 70: panic: the prompt says so"},
		{"sleep long", `API Error: time: invalid duration "long"`},
		{"flood much", `API Error: strconv.Atoi: parsing "much": invalid syntax`},
	}
	b := newAgentEnv(t)
	for _, test := range tests {
		t.Run(test.prompt, func(t *testing.T) {
			events, messages, sum := b.runAgent(t, test.prompt)
			if sum.Error != test.want || sum.FinishReason != output.FinishError || events[len(events)-1].Type != output.Finish {
				t.Errorf("got %+v, want %q", sum, test.want)
			}
			for _, m := range messages {
				if m.Body == "b" {
					t.Error("the agent continued after the failure")
				}
			}
		})
	}
}

func TestFlood(t *testing.T) {
	_, messages, sum := newAgentEnv(t).runAgent(t, "flood 5000")
	if len(messages) != 5000 || sum.Text != "flood 5000" || sum.Usage.Input != 500000 {
		t.Errorf("got %d messages, %+v", len(messages), sum)
	}
}

func TestFlags(t *testing.T) {
	tests := []struct {
		name, stdin, want string
		args              []string
		code              int
	}{
		{"stdin", "say a\nsay b\n", "b\n", []string{"-p"}, 0},
		{"after the prompt", "", "a\n", []string{"-p", "say a", "--verbose"}, 0},
		{"not verbose", "", "", []string{"-p", "say a", "--output-format", "stream-json"}, 1},
		{"format", "", "", []string{"-p", "say a", "--output-format", "yaml"}, 1},
		{"no prompt", "", "", []string{"-p"}, 1},
		{"not -p", "", "", []string{"say a"}, 1},
		{"unknown", "", "", []string{"-p", "--frobnicate", "say a"}, 1},
	}
	b := newAgentEnv(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cmd := b.command(t, test.args...)
			cmd.Stdin = strings.NewReader(test.stdin)
			out, _ := cmd.Output() // the test checks the exit code
			if got := string(out); got != test.want || cmd.ProcessState.ExitCode() != test.code {
				t.Errorf("got %q and code %d, want %q and %d", got, cmd.ProcessState.ExitCode(), test.want, test.code)
			}
		})
	}
}

// A signal ends the agent at once, together with its command.
func TestSignal(t *testing.T) {
	b := newAgentEnv(t)
	cmd := b.command(t, "--verbose", "--output-format", "stream-json", "-p", "run exec sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var seen []byte
	for buf := make([]byte, 4096); !bytes.Contains(seen, []byte("tool_use")); {
		n, err := out.Read(buf)
		if err != nil {
			t.Fatalf("after %q: %v", seen, err)
		}
		seen = append(seen, buf[:n]...)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the test checks the exit code
	if code := cmd.ProcessState.ExitCode(); code != 143 {
		t.Errorf("got code %d", code)
	}
}
