package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testmodel"
)

const sandboxExec = "mcp__atoll__sandbox_exec"

// tinyPDF is a PDF with one empty page.
const tinyPDF = `%PDF-1.1
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]>>endobj
trailer<</Root 1 0 R>>
`

// Claude Code works in the sandbox that atoll mcp install gives it, with the model of a script.
func TestClaudeCode(t *testing.T) {
	testenv.Need(t, testenv.Agent("claude"))
	env := claudeEnv(t)
	project := t.TempDir()
	atollIn(t, env, project, "mcp", "install", "claude", "--deny-bash")
	model := testmodel.New(
		testmodel.Reply{Call: sandboxExec, Input: map[string]any{"command": "echo the-answer-is-$((6*7))"}},
		testmodel.Reply{Call: "mcp__atoll__sandbox_fs_write", Input: map[string]any{"path": "x.pdf", "content": tinyPDF}},
		testmodel.Reply{Call: "mcp__atoll__sandbox_fs_read", Input: map[string]any{"path": "x.pdf"}},
		testmodel.Reply{Text: "It is 42."},
	)
	out := runClaude(t, env, project, model, "--allowedTools", sandboxExec, "mcp__atoll__sandbox_fs_read", "mcp__atoll__sandbox_fs_write")
	if !strings.Contains(out, "It is 42.") || model.Left() != 0 {
		t.Errorf("claude printed %q, and %d replies are left", out, model.Left())
	}
	requests := model.Requests()
	if len(requests) != 4 || !strings.Contains(requests[1], "the-answer-is-42") {
		t.Fatalf("%d requests; the second one has no output of the command: %s", len(requests), requests[len(requests)-1])
	}
	if !strings.Contains(requests[3], fmt.Sprintf("(application/pdf, %d bytes) saved to ", len(tinyPDF))) { // from where it reads the pages
		t.Errorf("Claude Code does not get the PDF: %s", requests[3])
	}
	if testmodel.OffersTool(requests[0], "Bash") {
		t.Error("claude offers its own Bash")
	}
	atollIn(t, env, project, "mcp", "uninstall", "claude", "--deny-bash")
	after := testmodel.New(testmodel.Reply{Text: "Bye."})
	runClaude(t, env, project, after)
	if request := after.Requests()[0]; testmodel.OffersTool(request, sandboxExec) || !testmodel.OffersTool(request, "Bash") {
		t.Error("after the removal claude offers the sandbox, or no Bash")
	}
}

// The plugins of the marketplace in this repository are valid. The first works on the project in place; the second
// denies Bash.
func TestClaudePlugins(t *testing.T) {
	testenv.Need(t, testenv.Agent("claude"))
	needGVisor(t)
	env := append(claudeEnv(t), "ATOLL_PROVIDER=gvisor", "ATOLL_PROVIDERS=gvisor") // which works on directories in place
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	plugins := filepath.Join(root, "packaging", "claude")
	for _, dir := range []string{root, filepath.Join(plugins, "atoll"), filepath.Join(plugins, "atoll-only")} {
		runIn(t, env, root, "claude", "plugin", "validate", dir)
	}
	project := t.TempDir()
	const call = "mcp__plugin_atoll_atoll__sandbox_exec"
	model := testmodel.New(
		testmodel.Reply{Run: "touch outside"},
		testmodel.Reply{Call: call, Input: map[string]any{"command": "touch inside; echo the-answer-is-$((6*7))"}},
		testmodel.Reply{Text: "Done."},
	)
	runClaude(t, env, project, model, "--plugin-dir", filepath.Join(plugins, "atoll"), "--plugin-dir", filepath.Join(plugins, "atoll-only"), "--allowedTools", call, "Bash")
	requests := model.Requests()
	if len(requests) != 3 || !strings.Contains(requests[1], "Bash is denied here") || !strings.Contains(requests[2], "the-answer-is-42") {
		t.Fatalf("%d requests, without the refusal or without the output: %s", len(requests), requests[len(requests)-1])
	}
	if _, err := os.Stat(filepath.Join(project, "outside")); err == nil {
		t.Error("Bash ran on the machine")
	}
	if _, err := os.Stat(filepath.Join(project, "inside")); err != nil {
		t.Errorf("the sandbox does not work on the project: %v", err)
	}
}

// claudeEnv returns an environment with a home directory of its own, in which atoll is this program.
func claudeEnv(t *testing.T) []string {
	t.Helper()
	env := mcpEnv(t)
	home := stateOf(env)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(home, "bin")
	if err := os.MkdirAll(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, "atoll")); err != nil {
		t.Fatal(err)
	}
	return append(env, "HOME="+home, "CLAUDE_CONFIG_DIR="+filepath.Join(home, "claude"), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// atollIn runs atoll in a directory.
func atollIn(t *testing.T, env []string, dir string, args ...string) {
	t.Helper()
	runIn(t, env, dir, filepath.Join(stateOf(env), "bin", "atoll"), args...)
}

func runIn(t *testing.T, env []string, dir, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Dir = env, dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// runClaude runs Claude Code once, without a person, on a model.
func runClaude(t *testing.T, env []string, dir string, model *testmodel.Model, flags ...string) string {
	t.Helper()
	server := httptest.NewServer(model)
	defer server.Close()
	env = append(slices.Clone(env), "ANTHROPIC_BASE_URL="+server.URL, "ANTHROPIC_API_KEY="+testmodel.Key,
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "ENABLE_TOOL_SEARCH=false") // all tools are in the first request
	return runIn(t, env, dir, "claude", append([]string{"-p", "Compute six times seven.", "--max-turns", "5"}, flags...)...)
}
