package recipe

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testmodel"
	"github.com/seed46cd37a8/atoll/internal/testing/testworld"
)

// The users that agents run as: root and another one.
var realUsers = map[string]int{"root": 0, "another user": 1234}

// realKeys are keys that look like those of each variable.
var realKeys = map[string]string{
	"ANTHROPIC_API_KEY":    "sk-ant-api03-0123456789abcdefghijklmnopqrstuvwxyz",
	"OPENAI_API_KEY":       "sk-proj-0123456789abcdefghijklmnopqrstuvwxyz",
	"GEMINI_API_KEY":       "AIzaSy0123456789abcdefghijklmnopqrstuvw",
	"COPILOT_GITHUB_TOKEN": "github_pat_0123456789abcdefghijklmnopqrstuvwxyz",
}

// copilotAnswers has what GitHub answers copilot, by host and path.
var copilotAnswers = map[string]string{
	"api.github.com/copilot_internal/user": `{"login": "me", "id": 1, "access_type_sku": "pro", "copilot_plan": "individual", "chat_enabled": true,
		"cli_enabled": true, "endpoints": {"api": "https://api.githubcopilot.com"}}`,
	"api.githubcopilot.com/models": `{"data": [{"id": "gpt-5-mini", "name": "gpt-5-mini", "object": "model", "vendor": "OpenAI", "version": "gpt-5-mini",
		"model_picker_enabled": true, "is_chat_default": true, "is_chat_fallback": true, "preview": false, "supported_endpoints": ["/chat/completions"],
		"policy": {"state": "enabled", "terms": ""}, "billing": {"is_premium": false, "multiplier": 1}, "capabilities": {"family": "gpt-5-mini",
		"object": "model_capabilities", "type": "chat", "tokenizer": "o200k_base", "supports": {"tool_calls": true, "streaming": true},
		"limits": {"max_context_window_tokens": 128000, "max_output_tokens": 16000, "max_prompt_tokens": 100000}}}]}`,
}

// A realRun is an agent at work in directories of its own.
type realRun struct {
	recipe *Recipe
	world  *testworld.World
	key    string
	uid    int
	home   string
	dir    string
	env    []string
}

// Released agents do the work of a script with their recipes, at the real names of their hosts, which a model of this test answers.
func TestReal(t *testing.T) {
	tests := []struct{ agent, variable string }{
		{"claude", "ANTHROPIC_API_KEY"},
		{"codex", "OPENAI_API_KEY"},
		{"gemini", "GEMINI_API_KEY"},
		{"opencode", "ANTHROPIC_API_KEY"},
		{"copilot", "COPILOT_GITHUB_TOKEN"},
	}
	if testing.Short() {
		t.Skip("starts real agents, four times each")
	}
	w := testworld.Enter(t)
	if w == nil {
		return
	}
	for _, test := range tests {
		t.Run(test.agent, func(t *testing.T) {
			testenv.Need(t, testenv.Agent(test.agent))
			for _, user := range slices.Sorted(maps.Keys(realUsers)) {
				t.Run(user, func(t *testing.T) {
					r := newRealRun(t, w, test.agent, test.variable, realUsers[user])
					r.checkWork(t)
				})
			}
		})
	}
}

// newRealRun prepares the directories of an agent as its recipe says.
func newRealRun(t *testing.T, w *testworld.World, agent, variable string, uid int) *realRun {
	t.Helper()
	recipe, err := loadOwn(t).Find(agent)
	if err != nil {
		t.Fatal(err)
	}
	top := t.TempDir()
	r := &realRun{recipe: recipe, world: w, key: realKeys[variable], uid: uid, home: filepath.Join(top, "home"), dir: filepath.Join(top, "work")}
	p := Params{Home: r.home, Workdir: r.dir, Secrets: map[string]string{variable: r.key}}
	files, err := recipe.RenderFiles(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		path := filepath.Join(r.home, f.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env, err := recipe.RenderEnv(p)
	if err != nil {
		t.Fatal(err)
	}
	const bundle = "/etc/ssl/certs/ca-certificates.crt"
	r.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.home, "SSL_CERT_FILE=" + bundle, "NODE_EXTRA_CA_CERTS=" + bundle, variable + "=" + r.key}
	for name, value := range env {
		r.env = append(r.env, name+"="+value)
	}
	for _, command := range []string{"mkdir -p " + r.home, "git init -q -b main " + r.dir, "chown -R " + owner(uid) + " " + top, "chmod 711 " + filepath.Dir(top)} {
		if out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	r.runCommand(t, []string{"git", "config", "user.email", "agent@example.com"})
	r.runCommand(t, []string{"git", "config", "user.name", "Agent"})
	return r
}

func owner(uid int) string {
	if uid == 0 {
		return "0:0"
	}
	return "1234:1234"
}

// checkWork has the agent write a file and commit it, and then resume.
func (r *realRun) checkWork(t *testing.T) {
	t.Helper()
	model := r.serveModel(
		testmodel.Reply{Text: "Let me write it.", Path: filepath.Join(r.dir, "made.txt"), Content: "it's made\n"},
		testmodel.Reply{Run: "git add made.txt && git commit -q -m Made && expr 6 '*' 7 | sed s/^/the-answer-is-/"},
		testmodel.Reply{Text: "It is done."},
	)
	out := r.runCommand(t, r.commandOf(t, Start{Prompt: "- Make a file, please.", Headless: true}))
	if asked := model.Log(); !slices.ContainsFunc(asked, func(req testmodel.Request) bool { return slices.ContainsFunc(req.Prompts, isPrompt) }) {
		t.Error("the model did not get the prompt")
	}
	if !strings.Contains(out, "It is done.") || model.Left() != 0 {
		t.Errorf("%d replies left after\n%s", model.Left(), out)
	}
	if data, err := os.ReadFile(filepath.Join(r.dir, "made.txt")); err != nil || strings.TrimSpace(string(data)) != "it's made" {
		t.Errorf("made.txt: %q, %v", data, err)
	}
	if log := r.runCommand(t, []string{"git", "log", "--format=%s"}); log != "Made\n" {
		t.Errorf("git log: %q", log)
	}
	r.checkLog(t, model, "the-answer-is-42")

	model = r.serveModel(testmodel.Reply{Text: "I remember."})
	out = r.runCommand(t, r.commandOf(t, Start{Prompt: "- And now?", Headless: true, Resume: true}))
	if !strings.Contains(out, "I remember.") {
		t.Errorf("resumed: got\n%s", out)
	}
	r.checkLog(t, model, "the-answer-is-42")

	r.serveModel(testmodel.Reply{Error: "it is too long"})
	if _, err := r.startCommand(t, r.commandOf(t, Start{Prompt: "More.", Headless: true})); err == nil {
		t.Error("it ends with 0 after an error of the API")
	}
}

func (r *realRun) commandOf(t *testing.T, s Start) []string {
	t.Helper()
	command, err := r.recipe.Command(s)
	if err != nil {
		t.Fatal(err)
	}
	return command
}

func isPrompt(text string) bool { return strings.Contains(text, "- Make a file, please.") }

// serveModel has a new model answer all requests.
func (r *realRun) serveModel(replies ...testmodel.Reply) *testmodel.Model {
	model := testmodel.NewWithKey(r.key, replies...)
	r.world.Handle(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if answer, ok := copilotAnswers[req.Host+req.URL.Path]; ok {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(answer)) // fails if the agent has gone
			return
		}
		model.ServeHTTP(w, req)
	}))
	return model
}

// checkLog checks that the last answered request had a result of a tool, and that no request went to a host for telemetry.
func (r *realRun) checkLog(t *testing.T, model *testmodel.Model, result string) {
	t.Helper()
	var results []string
	for _, req := range model.Log() {
		if slices.Contains(r.recipe.Telemetry, req.Host) {
			t.Errorf("request to %s%s", req.Host, req.Path)
		}
		if req.Status == http.StatusOK && len(req.Results) > 0 {
			results = req.Results
		}
	}
	if !strings.Contains(strings.Join(results, "\n"), result) {
		t.Errorf("the model got the results %q, want %s", results, result)
	}
}

// runCommand runs a command that has to succeed, and returns its output.
func (r *realRun) runCommand(t *testing.T, command []string) string {
	t.Helper()
	out, err := r.startCommand(t, command)
	if err != nil {
		t.Fatalf("%q: %v\n%s", command, err, out)
	}
	return out
}

// startCommand runs a command as the agent's user in the work directory, and returns its output.
func (r *realRun) startCommand(t *testing.T, command []string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(2*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = r.dir, r.env, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(r.uid), Gid: uint32(r.uid)}}
	out, err := cmd.CombinedOutput()
	return string(out), cmp.Or(err, ctx.Err())
}
