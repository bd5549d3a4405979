package template

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/hooks"
)

func TestBuiltins(t *testing.T) {
	s := NewSet()
	if got, want := s.Names(), []string{"claude-code", "codex", "shell"}; !slices.Equal(got, want) {
		t.Errorf("names %v, want %v", got, want)
	}
	t.Setenv("ANTHROPIC_API_KEY", "key-a")
	t.Setenv("CODEX_API_KEY", "key-c")
	claude := []string{"claude", "--dangerously-skip-permissions", "--verbose", "--output-format", "stream-json"}
	codex := []string{"codex", "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--disable", "shell_snapshot"}
	for _, tt := range []struct {
		name, is string
		image    string
		network  atoll.NetworkMode
		first    []string
		next     []string
		goesOn   string
		user     string
		env      []string
		stdin    bool
		tty      bool
		setup    [][]string
	}{
		{"claude-code", "claude-code", "docker/sandbox-templates:claude-code", atoll.NetworkOn,
			append(slices.Clone(claude), "-p", "hi"), append(slices.Clone(claude), "-c", "-p", "hi"), "/work/.agent/claude/projects", "agent",
			[]string{"CLAUDE_CONFIG_DIR=/work/.agent/claude", "DISABLE_AUTOUPDATER=1", "ANTHROPIC_API_KEY=key-a"}, false, true,
			[][]string{{"mkdir", "-p", "/work/.agent/claude"}, {"chown", "-Rh", "agent", "/work"}}},
		{"1", "claude-code", "docker/sandbox-templates:claude-code", atoll.NetworkOn,
			append(slices.Clone(claude), "-p", "hi"), append(slices.Clone(claude), "-c", "-p", "hi"), "/work/.agent/claude/projects", "agent",
			[]string{"CLAUDE_CONFIG_DIR=/work/.agent/claude", "DISABLE_AUTOUPDATER=1", "ANTHROPIC_API_KEY=key-a"}, false, true,
			[][]string{{"mkdir", "-p", "/work/.agent/claude"}, {"chown", "-Rh", "agent", "/work"}}},
		{"codex", "codex", "docker/sandbox-templates:codex", atoll.NetworkOn,
			append(slices.Clone(codex), "-"), append(slices.Clone(codex), "resume", "--last", "-"), "/work/.agent/codex/sessions", "agent",
			[]string{"CODEX_HOME=/work/.agent/codex", "CODEX_API_KEY=key-c"}, true, false,
			[][]string{{"mkdir", "-p", "/work/.agent/codex"}, {"chown", "-Rh", "agent", "/work"}}},
		{"shell", "shell", "", "", []string{"sh", "-c", "hi"}, []string{"sh", "-c", "hi"}, "", "", nil, false, false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tpl, err := s.Get(tt.name, "coder")
			if err != nil {
				t.Fatal(err)
			}
			if tpl.Name != tt.is || tpl.Spec.Image != tt.image || tpl.Spec.Network.Mode != tt.network || tpl.Doc == "" || !tpl.InitFromS3 {
				t.Errorf("%+v", tpl)
			}
			if tpl.Hooks.OnColdStart == nil || tpl.Hooks.OnMessage == nil || tpl.Hooks.OnStreamFinish == nil || tpl.Hooks.OnTerminate == nil {
				t.Errorf("a hook is missing: %+v", tpl.Hooks)
			}
			for continued, want := range map[bool][]string{false: tt.first, true: tt.next} {
				cmd, err := tpl.Turn("hi", continued)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(cmd.Args, want) || cmd.User != tt.user || cmd.Dir != "/work" || (cmd.TTY != nil) != tt.tty || (cmd.Stdin != nil) != tt.stdin || cmd.Timeout <= 0 {
					t.Errorf("continued %t: %+v, want %v", continued, cmd, want)
				}
				if !slices.Equal(cmd.Env, tt.env) {
					t.Errorf("environment %v, want %v", cmd.Env, tt.env)
				}
				if err := cmd.Validate(); err != nil {
					t.Error(err)
				}
			}
			var setup [][]string
			for _, cmd := range tpl.Setup() {
				if cmd.User != "root" || cmd.Dir != "/work" {
					t.Errorf("setup %+v is not root's", cmd)
				}
				setup = append(setup, cmd.Args)
			}
			if !reflect.DeepEqual(setup, tt.setup) || tpl.ContinuePath() != tt.goesOn {
				t.Errorf("setup %v, goes on if %q; want %v, %q", setup, tpl.ContinuePath(), tt.setup, tt.goesOn)
			}
			if text := fmt.Sprintf("%v %+v %#v", tpl, tpl, tpl.Agent); strings.Contains(text, "key-") {
				t.Errorf("a secret shows: %s", text)
			}
		})
	}
}

func makeMine(string) (*Template, error) {
	return &Template{Agent: Agent{Command: []string{"mine", "{prompt}"}}}, nil
}

func TestRegister(t *testing.T) {
	s := NewSet()
	for _, tt := range []struct {
		name string
		kind error
		text string
	}{
		{"mine", nil, ""},
		{"mine", atoll.ErrAlreadyExists, "two templates have this name: one from the program itself"},
		{"shell", nil, ""}, // a built-in template can be replaced once
		{"shell", atoll.ErrAlreadyExists, "two templates have this name"},
		{"1", atoll.ErrAlreadyExists, "an alias of claude-code"},
		{"", atoll.ErrInvalid, "use a letter"},
		{"../x", atoll.ErrInvalid, "use a letter"},
	} {
		err := s.Register(tt.name, makeMine)
		if (err == nil) != (tt.kind == nil) || err != nil && (!errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.text)) {
			t.Errorf("Register(%q): %v, want %q of kind %v", tt.name, err, tt.text, tt.kind)
		}
	}
	if got, want := s.Names(), []string{"claude-code", "codex", "mine", "shell"}; !slices.Equal(got, want) {
		t.Errorf("names %v, want %v", got, want)
	}
	for _, name := range []string{"mine", "shell"} {
		tpl, err := s.Get(name, "")
		if err != nil || tpl.Name != name || tpl.Agent.Command[0] != "mine" {
			t.Errorf("Get(%q) = %+v, %v", name, tpl, err)
		}
	}
}

// A registered function gets the agent's id, and its template is validated.
func TestMadeForAgents(t *testing.T) {
	s := NewSet()
	broken := errors.New("broken")
	if err := s.Register("mine", func(agentID string) (*Template, error) {
		switch agentID {
		case "none":
			return nil, nil
		case "broken":
			return nil, broken
		case "bad":
			return &Template{Dir: "here"}, nil
		}
		return &Template{KeyPrefix: "agents/{account}/" + agentID, Hooks: hooks.Default()}, nil
	}); err != nil {
		t.Fatal(err)
	}
	a, err := s.Get("mine", "coder")
	b, err2 := s.Get("mine", "coder")
	if err := errors.Join(err, err2); err != nil || a == b || a.KeyPrefix != "agents/{account}/coder" {
		t.Errorf("Get = %+v, %+v, %v", a, b, err)
	}
	for agent, want := range map[string]error{"none": atoll.ErrInternal, "broken": broken, "bad": atoll.ErrInvalid, "../up": atoll.ErrInvalid} {
		if _, err := s.Get("mine", agent); !errors.Is(err, want) {
			t.Errorf("for %s: %v, want %v", agent, err, want)
		}
	}
}

func TestUnknown(t *testing.T) {
	s := NewSet()
	for name, want := range map[string]string{
		"cladue-code":       "unsupported provider: cladue-code: known are claude-code, codex, shell; the nearest is claude-code",
		"7":                 "unsupported provider: 7: known are claude-code, codex, shell",
		"\x1b[2J":           `unsupported provider: "\x1b[2J": known are claude-code, codex, shell`,
		"no-such-thing-yet": "unsupported provider: no-such-thing-yet: known are claude-code, codex, shell",
	} {
		for _, err := range []error{secondResult(s.Get(name, "")), s.SetDefault(name)} {
			if !errors.Is(err, atoll.ErrInvalid) || err.Error() != want {
				t.Errorf("%q: %v, want %q", name, err, want)
			}
		}
	}
}

func secondResult[T any](_ T, err error) error { return err }

func TestDefault(t *testing.T) {
	s := NewSet()
	for _, tt := range []struct{ set, want string }{{"", "claude-code"}, {"shell", "shell"}, {"1", "claude-code"}} {
		if tt.set != "" {
			if err := s.SetDefault(tt.set); err != nil {
				t.Error(err)
			}
		}
		if tpl, err := s.Get("", ""); err != nil || tpl.Name != tt.want {
			t.Errorf("with the default %q: %+v, %v, want %s", tt.set, tpl, err, tt.want)
		}
	}
}

func TestRegisterHook(t *testing.T) {
	s := NewSet()
	ran := 0
	count := func(context.Context, *hooks.HookData) error { ran++; return nil }
	if err := s.RegisterHook("count", count); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"count": atoll.ErrAlreadyExists, "default": atoll.ErrAlreadyExists, "": atoll.ErrInvalid, "a b": atoll.ErrInvalid} {
		if err := s.RegisterHook(name, count); !errors.Is(err, want) {
			t.Errorf("RegisterHook(%q): %v, want %v", name, err, want)
		}
	}
	if err := s.RegisterHook("nil", nil); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("RegisterHook of nil: %v", err)
	}
	if err := s.Parse("x", []byte("extends: shell\nhooks: {on_terminate: [count, count], on_message: count}")); err != nil {
		t.Fatal(err)
	}
	tpl, err := s.Get("x", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tpl.Hooks.OnTerminate(t.Context(), &hooks.HookData{}), tpl.Hooks.OnMessage(t.Context(), &hooks.HookData{})); err != nil || ran != 3 {
		t.Errorf("ran %d times, %v; want 3", ran, err)
	}
}

// A Set may be read and extended concurrently.
func TestAtOnce(t *testing.T) {
	s := NewSet()
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			name := fmt.Sprint("t", i)
			if i%2 == 0 {
				if err := s.Register(name, makeMine); err != nil {
					t.Error(err)
				}
			} else if err := s.Parse(name, []byte("extends: codex\nhooks: {on_message: []}")); err != nil {
				t.Error(err)
			}
			if err := s.RegisterHook(name, hooks.Push); err != nil {
				t.Error(err)
			}
			if _, err := s.Get(name, "coder"); err != nil {
				t.Error(err)
			}
			s.Names()
		})
	}
	all.Wait()
	if n := len(s.Names()); n != 23 {
		t.Errorf("%d templates, want 23", n)
	}
}

func TestExample(t *testing.T) {
	s := NewSet()
	if err := s.LoadDir(filepath.Join("..", "..", "examples", "templates")); err != nil {
		t.Fatal(err)
	}
	got, err := s.Get("reviewer", "coder")
	if err != nil {
		t.Fatal(err)
	}
	base, err := s.Get("claude-code", "coder")
	if err != nil {
		t.Fatal(err)
	}
	github, err := NewSecret("file:/run/secrets/github", true)
	if err != nil {
		t.Fatal(err)
	}
	want := *base
	want.Name, want.Doc = "reviewer", "reviews changes; cannot reach anything but the model and the code's home"
	want.Spec.Network = atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"api.anthropic.com", "github.com", "*.githubusercontent.com"}}
	want.Spec.Resources = atoll.Resources{Memory: 4 << 30, CPUs: 2}
	want.Spec.IdleStop = atoll.Duration(30 * time.Minute)
	want.KeyPrefix, want.Policy, want.KeepVersions, want.KeepDays = "reviews/{account}/{conversation}", PolicySynced, 20, 30
	want.Agent.Timeout = atoll.Duration(20 * time.Minute)
	want.Agent.Secrets = maps.Clone(base.Agent.Secrets)
	want.Agent.Secrets["GITHUB_TOKEN"] = github
	if got.Hooks.OnColdStart == nil || got.Hooks.OnStreamFinish == nil {
		t.Errorf("hooks %+v", got.Hooks)
	}
	got.Hooks, want.Hooks = hooks.Hooks{}, hooks.Hooks{}
	if !reflect.DeepEqual(got, &want) {
		t.Errorf("got  %+v\nwant %+v", got, &want)
	}
}

// writeFiles makes a directory of files.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
