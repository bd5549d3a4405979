package output

import (
	"bytes"
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testmodel"
)

// A realAgent is a released agent program, with a model that follows a script.
type realAgent struct {
	format string
	dir    string // its work directory
	model  *testmodel.Model
	env    []string
}

func newRealAgent(t *testing.T, format string, replies ...testmodel.Reply) (agent *realAgent, url string) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a real agent three times")
	}
	testenv.Need(t, testenv.Agent(format))
	r := &realAgent{format: format, dir: t.TempDir(), model: testmodel.New(replies...)}
	server := httptest.NewServer(r.model)
	t.Cleanup(server.Close)
	r.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	for _, name := range []string{"TMPDIR", "CLAUDE_CODE_TMPDIR"} { // otherwise claude leaves a directory in /tmp
		r.env = append(r.env, name+"="+t.TempDir())
	}
	return r, server.URL
}

// runAgent runs the program, and parses its output.
func (r *realAgent) runAgent(t *testing.T, args ...string) (Step, Summary) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(2*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, r.format, args...)
	cmd.Dir, cmd.Env = r.dir, r.env
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v, stderr %s", err, &stderr)
	}
	lines := bytes.Split(bytes.TrimSuffix(out, []byte("\n")), []byte("\n"))
	step, sum := parseLines(t, r.format, lines, runEnd{exit: atoll.Exit{Code: cmd.ProcessState.ExitCode()}, stderr: stderr.String()})
	checkStep(t, step, sum)
	return step, sum
}

// summarize returns messages, each as a line; the names of tools and their inputs are
// the agent's.
func summarize(messages []agent.Message) []string {
	var all []string
	for _, m := range messages {
		line := string(m.Role) + " " + m.Body
		for _, c := range m.ToolCalls {
			line += strings.TrimRight(" ["+c.Status+" "+c.Output, " \n") + "]"
		}
		all = append(all, line)
	}
	return all
}

// workScript holds the model's replies in these tests, in two turns.
var workScript = []testmodel.Reply{
	{Think: "A file is wanted.", Text: "Let me write it, Jürgen.", Run: "echo made > made.txt; cat made.txt"},
	{Text: "And one that fails.", Run: "echo oops; exit 3"},
	{Text: "It is done."},
	{Text: "I remember."},
}

func (r *realAgent) checkFile(t *testing.T) {
	t.Helper()
	if data, err := os.ReadFile(filepath.Join(r.dir, "made.txt")); err != nil || string(data) != "made\n" {
		t.Errorf("made.txt: %q, %v", data, err)
	}
}

func TestRealClaude(t *testing.T) {
	for name, flags := range map[string][]string{"whole": nil, "in pieces": {"--include-partial-messages"}} {
		t.Run(name, func(t *testing.T) {
			r, url := newRealAgent(t, "claude", workScript...)
			r.env = append(r.env, "ANTHROPIC_BASE_URL="+url, "ANTHROPIC_API_KEY="+testmodel.Key, "IS_SANDBOX=1", // also as root
				"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1")
			args := slices.Concat([]string{"--dangerously-skip-permissions", "--verbose", "--output-format", "stream-json"}, flags)
			step, sum := r.runAgent(t, slices.Concat(args, []string{"-p", "Make a file, please."})...)
			want := []string{
				"assistant Let me write it, Jürgen. [called]", "tool  [completed made]",
				"assistant And one that fails. [called]", "tool  [failed Exit code 3\noops]", "assistant It is done.",
			}
			if got := summarize(step.Messages); !slices.Equal(got, want) {
				t.Errorf("got\n%q\nwant\n%q", got, want)
			}
			thought := slices.ContainsFunc(step.Events, func(e Event) bool { return e.Type == ReasoningDelta })
			if u := sum.Usage; u.Input != 300 || u.Cache != 90 || u.Output == 0 || sum.FinishReason != FinishStop || !thought || len(sum.SessionID) != 36 || sum.Text != "It is done." {
				t.Errorf("got %+v, thought %v", sum, thought)
			}
			r.checkFile(t)
			step, next := r.runAgent(t, slices.Concat(args, []string{"-c", "-p", "And now?"})...)
			if got := summarize(step.Messages); len(got) != 1 || got[0] != "assistant I remember." || next.SessionID != sum.SessionID {
				t.Errorf("with -c: got %q in session %s after %s", got, next.SessionID, sum.SessionID)
			}
			if asked := r.model.Requests(); !strings.Contains(asked[len(asked)-1], "Make a file, please.") {
				t.Error("with -c: the model was not told of the first prompt")
			}
			if _, over := r.runAgent(t, slices.Concat(args, []string{"-p", "More."})...); over.FinishReason != FinishError || !strings.Contains(over.Error, "no reply left") {
				t.Errorf("an error of the API: got %+v", over)
			}
		})
	}
}

func TestRealCodex(t *testing.T) {
	r, url := newRealAgent(t, "codex", workScript...)
	home := t.TempDir()
	r.env = append(r.env, "CODEX_HOME="+home, "TEST_KEY="+testmodel.Key)
	config := "model = \"gpt-5\"\nmodel_provider = \"test\"\n[model_providers.test]\nname = \"test\"\nbase_url = \"" + url +
		"/v1\"\nenv_key = \"TEST_KEY\"\nwire_api = \"responses\"\n"
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"}
	step, sum := r.runAgent(t, slices.Concat([]string{"exec"}, flags, []string{"Make a file, please."})...)
	want := []string{
		"assistant Let me write it, Jürgen. [called]", "tool  [completed made]",
		"assistant And one that fails. [called]", "tool  [failed oops]", "assistant It is done.",
	}
	if got := summarize(step.Messages); !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	if u := sum.Usage; u.Input != 300 || u.Cache != 60 || u.Output == 0 || sum.FinishReason != FinishStop || len(sum.SessionID) != 36 {
		t.Errorf("got %+v", sum)
	}
	r.checkFile(t)
	step, next := r.runAgent(t, slices.Concat([]string{"exec", "resume", "--last"}, flags, []string{"And now?"})...)
	if got := summarize(step.Messages); len(got) != 1 || got[0] != "assistant I remember." || next.SessionID != sum.SessionID {
		t.Errorf("resumed: got %q in thread %s after %s", got, next.SessionID, sum.SessionID)
	}
	if next.Usage.Input != 400 {
		t.Errorf("resumed: got %+v, want the tokens of both turns", next.Usage)
	}
	if _, over := r.runAgent(t, slices.Concat([]string{"exec"}, flags, []string{"More."})...); over.FinishReason != FinishError || !strings.Contains(over.Error, "no reply left") {
		t.Errorf("an error of the API: got %+v", over)
	}
}
