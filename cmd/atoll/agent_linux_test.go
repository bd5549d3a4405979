package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testmodel"
	"github.com/seed46cd37a8/atoll/internal/testing/testworld"
)

// agentKey is a key of a model that nothing but a request of the gateway may have.
const agentKey = "sk-ant-api03-ValueThatNobodyMaySee0123456789"

// scriptRecipe is an agent that is a script: it asks a model, and does the work itself.
const scriptRecipe = `
title: Script
about: An agent for tests.
command: sh
headless: [-c, "${PROMPT}", "${ARGS}"]
secrets:
  - {name: ANTHROPIC_API_KEY, hosts: [api.anthropic.com], group: model}
`

// An agentLab is a user with a repository in a world.
type agentLab struct {
	t     *testing.T
	world *testworld.World
	home  string
	repo  string
	env   []string
}

func newAgentLab(t *testing.T, w *testworld.World, provider string) *agentLab {
	t.Helper()
	state, err := os.MkdirTemp("", "atoll")
	if err != nil {
		t.Fatal(err)
	}
	l := &agentLab{t: t, world: w, home: filepath.Join(state, "home"), repo: filepath.Join(state, "home", "lib")}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "ATOLL_") {
			l.env = append(l.env, kv)
		}
	}
	l.env = append(l.env, "HOME="+l.home, "XDG_STATE_HOME="+state, "XDG_CONFIG_HOME="+filepath.Join(l.home, ".config"),
		"ATOLL_PROVIDER="+provider, "ATOLL_PROVIDERS="+provider, "ATOLL_WARM=false", "ANTHROPIC_API_KEY="+agentKey, "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=me", "GIT_AUTHOR_EMAIL=me@example.com", "GIT_COMMITTER_NAME=me", "GIT_COMMITTER_EMAIL=me@example.com", "PATH="+clientDir(t)+":"+os.Getenv("PATH"))
	agents := filepath.Join(l.home, ".config", "atoll", "agents")
	if err := os.MkdirAll(agents, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(agents, "script.yaml"), []byte(scriptRecipe), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.run("sh", "-c", "atoll rm --all --volumes 2>&1")
		os.RemoveAll(state)
	})
	l.run("git", "init", "-q", "-b", "main", l.repo)
	l.must("sh", "-c", "echo one > a && git add a && git commit -qm first")
	return l
}

// run runs a command in the repository, and returns its output and its exit code.
func (l *agentLab) run(args ...string) (string, int) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Scale(2*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env, cmd.WaitDelay = l.env, time.Second
	if cmd.Dir = l.repo; args[0] == "git" && args[1] == "init" {
		cmd.Dir = l.home
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		l.t.Fatalf("%q: %v", args, err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// must runs a command that has to succeed.
func (l *agentLab) must(args ...string) string {
	l.t.Helper()
	out, code := l.run(args...)
	if code != 0 {
		l.t.Fatalf("%q: exit code %d\n%s", args, code, out)
	}
	return out
}

func (l *agentLab) want(out string, want ...string) {
	l.t.Helper()
	for _, w := range want {
		if !strings.Contains(out, w) {
			l.t.Errorf("got %q, want %q", out, w)
		}
	}
}

// serve has a model answer, and returns it.
func (l *agentLab) serve(replies ...testmodel.Reply) *testmodel.Model {
	m := testmodel.NewWithKey(agentKey, replies...)
	l.world.Handle(http.HandlerFunc(m.ServeHTTP))
	return m
}

// allowWorld lets the sandbox reach the address of all names in the world.
const allowWorld = "--allow=" + testworld.Address

// An agent works in a worktree, its keys are outside, and its work comes into the repository on command only.
func TestAgent(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Program("git", "git"), testenv.Program("curl", "curl"))
	w := testworld.Enter(t)
	if w == nil {
		return
	}
	providers := []string{"native"}
	if testenv.RunAll() {
		providers = append(providers, "gvisor")
	}
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			l := newAgentLab(t, w, provider)
			l.checkWork()
			l.checkSideBySide()
		})
	}
}

// Released agents do a task from its prompt to a commit that is applied. They get no key, and the model gets it.
func TestAgentPrograms(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Program("git", "git"))
	w := testworld.Enter(t)
	if w == nil {
		return
	}
	for agent, variable := range map[string]string{"claude": "ANTHROPIC_API_KEY", "codex": "OPENAI_API_KEY", "gemini": "GEMINI_API_KEY", "opencode": "ANTHROPIC_API_KEY"} {
		t.Run(agent, func(t *testing.T) {
			testenv.Need(t, testenv.Agent(agent))
			l := newAgentLab(t, w, "native")
			l.env = append(l.env, variable+"="+agentKey)
			model := l.serve(
				testmodel.Reply{Run: "echo made > made.txt && git add made.txt && git commit -qm Made && env"},
				testmodel.Reply{Text: "It is done."},
			)
			out, code := l.run("atoll", "agent", allowWorld, agent, "-p", "Make a file, please.")
			if code != 0 {
				t.Fatalf("exit code %d\n%s", code, out)
			}
			l.want(out, "It is done.", agent+": 1 commit, 1 file changed")
			if len(model.Log()) == 0 || model.Left() != 0 {
				t.Errorf("%d replies left of %d requests", model.Left(), len(model.Log()))
			}
			for _, req := range model.Log() {
				if strings.Contains(strings.Join(req.Results, ""), agentKey) {
					t.Error("the agent has the key")
				}
			}
			l.want(l.must("atoll", "agent", "apply", agent), "main is at")
			l.want(l.must("git", "log", "--format=%s"), "Made\nfirst")
			l.must("atoll", "agent", "discard", "-f", agent)
		})
	}
}

func (l *agentLab) checkWork() {
	l.t.Helper()
	model := l.serve(testmodel.Reply{Text: "It is done."})
	script := `set -e
		curl -sS -o /dev/null -H "x-api-key: $ANTHROPIC_API_KEY" -H 'content-type: application/json' https://api.anthropic.com/v1/messages \
			-d '{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hello"}]}'
		echo two >> a; git commit -qam second; echo x > new; mkdir .vscode; echo '{}' > .vscode/tasks.json
		curl -sS https://evil.example/ || true
		echo "key=$ANTHROPIC_API_KEY home=$HOME"; git push origin main 2>&1 || true
		cat .git; echo evil > .git/hooks 2>&1 || true; git update-ref refs/heads/main HEAD; exit 3`
	out, code := l.run("atoll", "agent", allowWorld, "script", "-p", script)
	if code != 3 {
		l.t.Fatalf("exit code %d\n%s", code, out)
	}
	l.want(out, "script: 2 commits, 3 files changed", "atoll agent diff script", "the network refused", "home="+agentHome, "key=sk-ant-api03-")
	if strings.Contains(out, agentKey) {
		l.t.Errorf("the agent has the key: %q", out)
	}
	if all := model.Log(); len(all) != 1 || all[0].Header.Get("X-Api-Key") != agentKey {
		l.t.Errorf("the model got %+v, want a request with the key", all)
	}
	// The repository is as it was, and atoll has not left the key anywhere.
	l.want(l.must("git", "log", "--format=%s", "main"), "first\n")
	if out := l.must("git", "status", "--porcelain"); out != "" {
		l.t.Errorf("git status: %q", out)
	}
	if out, _ := l.run("grep", "-rl", agentKey[len("sk-ant-api03-"):], l.home, filepath.Dir(l.home)); out != "" {
		l.t.Errorf("the key is in %s", out)
	}
	l.want(l.must("atoll", "agent", "ls"), "script", "stopped", "atoll/script", l.repo)
	l.want(l.must("atoll", "net", "log", "script"), "refused", "evil.example", "POST /v1/messages", "api.anthropic.com:443")
	l.want(l.must("atoll", "agent", "diff", "script"), "+two", "+x", "held back: .vscode/tasks.json: VS Code runs")
	l.want(l.must("atoll", "agent", "diff", "--stat", "script"), "3 files changed")
	l.must("sh", "-c", "echo mine >> a")
	if out, code := l.run("atoll", "agent", "apply", "script"); code == 0 || !strings.Contains(out, `you have changes without a commit in "a": commit or stash them first`) {
		l.t.Errorf("apply over a change: %d %q", code, out)
	}
	l.must("git", "checkout", "-q", "a")
	l.want(l.must("atoll", "agent", "apply", "script"), "main is at", "held back: .vscode/tasks.json")
	l.want(l.must("git", "log", "-1", "--format=%B"), "Work of agent script", "- second", "- Changes without a commit")
	l.want(l.must("cat", "a", "new"), "one\ntwo\nx\n")
	l.must("atoll", "agent", "discard", "-f", "script")
	if out := l.must("sh", "-c", "git branch --list 'atoll/*'; git for-each-ref refs/atoll; git worktree list | tail -n +2; atoll ls -q; atoll agent ls -q"); out != "" {
		l.t.Errorf("after discard there is %q", out)
	}
}

// checkSideBySide has two agents work at once in the background, and refuses what cannot be.
func (l *agentLab) checkSideBySide() {
	l.t.Helper()
	task := `while [ ! -e go ]; do sleep .1; done; echo $0 > made-$PPID; git add -A; git commit -qm made; echo finished`
	l.must("atoll", "agent", "-d", "script", "-p", task)
	l.must("atoll", "agent", "-d", "script", "-p", task)
	l.want(l.must("atoll", "agent", "ls"), "script-2", "working")
	if out, code := l.run("atoll", "agent", "--name", "script", "script", "-p", "x"); code == 0 || !strings.Contains(out, "there is an agent with this name") {
		l.t.Errorf("a name twice: %d %q", code, out)
	}
	for args, want := range map[string]string{
		"agent nosuch -p x":                       "no such agent: the known ones are",
		"agent script":                            "stdin is not a terminal: give the agent a task with -p TEXT",
		"agent -d script":                         "-d needs a task",
		"agent diff nosuch":                       "atoll agent ls lists them",
		"agent --branch atoll/script script -p x": "choose another with --branch",
	} {
		if out, code := l.run(append([]string{"atoll"}, strings.Fields(args)...)...); code == 0 || !strings.Contains(out, want) {
			l.t.Errorf("%s: %d %q, want %q", args, code, out, want)
		}
	}
	if out := l.must("atoll", "agent", "ls", "-q"); out != "script\nscript-2\n" {
		l.t.Errorf("the agents are %q", out)
	}
	for _, name := range []string{"script", "script-2"} {
		l.must("atoll", "exec", name, "--", "touch", "go")
		l.eventually("atoll agent logs "+name, "finished")
		l.eventually("atoll agent ls", "done (0)")
		l.want(l.must("atoll", "agent", "apply", "--patch", name), "changed your files")
		l.must("sh", "-c", "rm -f go made-*")
		l.must("atoll", "agent", "stop", name)
		l.want(l.must("atoll", "agent", "diff", name), "made-")
		l.must("atoll", "agent", "discard", "-f", name)
	}
}

// eventually runs a command until its output has a text.
func (l *agentLab) eventually(command, want string) {
	l.t.Helper()
	for end := time.Now().Add(testenv.Scale(20 * time.Second)); ; time.Sleep(100 * time.Millisecond) {
		out, _ := l.run(strings.Fields(command)...)
		if strings.Contains(out, want) {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("%s: got %q, want %q", command, out, want)
		}
	}
}
