package template

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/hooks"
)

func TestParse(t *testing.T) {
	s := NewSet()
	err := s.Parse("full", []byte(`
name: everything
doc: all that can stand in a file
provider: docker
spec:
  image: debian:13
  env: [A=b, C=1]
  labels: {team: red}
  network: {mode: on}
  mounts:
    - {type: tmpfs, target: /tmp, size: 64m}
  ports: [{port: 8080, publish: true}]
  resources: {memory: 1g, cpus: 1.5, processes: 100}
  ttl: 24h
  tty: {rows: 24, cols: 80}
  workspace: {name: code}
  read_only_root: true
volume: vol-{account}
dir: /srv/data
bucket: s3://bucket/base
key_prefix: a/{account}/{agent}/{sandbox}
init_from_s3: true
policy: ephemeral
keep_versions: 3
keep_days: 4
agent:
  command: [run, "{continue}", "{prompt}"]
  continue: [--again]
  continue_if: .state/log
  format: text
  user: 1000
  env: ["HOME={dir}"]
  secrets:
    KEY: env:SOME_KEY
    OTHER: {from: file:/run/other, optional: true}
  tty: false
  timeout: 90
  setup: [[chown, "{user}", "{dir}"]]
hooks:
  on_message: []
  on_terminate: ~
`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Get("everything", "")
	if err != nil {
		t.Fatal(err)
	}
	if h := got.Hooks; h.OnColdStart == nil || h.OnMessage != nil || h.OnStreamFinish == nil || h.OnTerminate == nil {
		t.Errorf("hooks %+v, want the usual ones, but for OnMessage", h)
	}
	got.Hooks = hooks.Hooks{}
	want := &Template{
		Name: "everything", Doc: "all that can stand in a file", Provider: "docker",
		Spec: atoll.Spec{
			Image: "debian:13", Env: []string{"A=b", "C=1"}, Labels: map[string]string{"team": "red"}, Network: atoll.Network{Mode: atoll.NetworkOn},
			Mounts: []atoll.Mount{{Type: atoll.MountTmpfs, Target: "/tmp", Size: 64 << 20}}, Ports: []atoll.Port{{Port: 8080, Publish: true}},
			Resources: atoll.Resources{Memory: 1 << 30, CPUs: 1.5, Processes: 100}, TTL: atoll.Duration(24 * time.Hour), TTY: &atoll.Size{Rows: 24, Cols: 80},
			Workspace: atoll.WorkspaceRef{Name: "code"}, ReadOnlyRoot: true,
		},
		Volume: "vol-{account}", Dir: "/srv/data", Bucket: "s3://bucket/base", KeyPrefix: "a/{account}/{agent}/{sandbox}", InitFromS3: true,
		Policy: PolicyEphemeral, KeepVersions: 3, KeepDays: 4,
		Agent: Agent{
			Command: []string{"run", "{continue}", "{prompt}"}, Continue: []string{"--again"}, ContinueIf: ".state/log", Format: FormatText, User: "1000",
			Env: []string{"HOME={dir}"}, Secrets: map[string]Secret{"KEY": {"env:SOME_KEY", false}, "OTHER": {"file:/run/other", true}},
			Timeout: atoll.Duration(90 * time.Second), Setup: [][]string{{"chown", "{user}", "{dir}"}},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// A file changes a copy of the template that it extends; that itself, and other
// extensions of it, stay unchanged.
func TestExtends(t *testing.T) {
	s := NewSet()
	dir := writeFiles(t, map[string]string{
		"a.yaml":           "extends: b\nagent: {timeout: 5m}",
		"b.yml":            "extends: claude-code\nspec: {image: mine}\nagent: {secrets: {EXTRA: env:EXTRA}}\nhooks: {on_message: []}",
		"claude-code.yaml": "extends: 1\nspec: {idle_stop: 5m}",
		".hidden.yaml":     "nonsense: true",
		"notes.txt":        "nonsense: true",
		"sub/c.yaml":       "nonsense: true",
	})
	if err := s.LoadDir(dir); err != nil {
		t.Fatal(err)
	}
	if got, want := s.Names(), []string{"a", "b", "claude-code", "codex", "shell"}; !slices.Equal(got, want) {
		t.Errorf("names %v, want %v", got, want)
	}
	for range 2 {
		a, err := s.Get("a", "")
		if err != nil {
			t.Fatal(err)
		}
		if a.Name != "a" || a.Spec.Image != "mine" || a.Spec.Network.Mode != atoll.NetworkOn || a.Spec.IdleStop != atoll.Duration(5*time.Minute) ||
			a.Agent.Timeout != atoll.Duration(5*time.Minute) || len(a.Agent.Secrets) != 2 || a.Hooks.OnMessage != nil || a.Hooks.OnColdStart == nil {
			t.Errorf("a is %+v", a)
		}
		a.Agent.Secrets["MORE"] = Secret{}
		a.Spec.Image = "changed"
	}
	if c, err := s.Get("1", ""); err != nil || c.Spec.IdleStop != atoll.Duration(5*time.Minute) || c.Spec.Image == "mine" || len(c.Agent.Secrets) != 1 {
		t.Errorf("claude-code is %+v, %v", c, err)
	}
	// Later templates can extend earlier ones, and can't change them.
	if err := s.Parse("late", []byte("extends: a\ndoc: late")); err != nil {
		t.Error(err)
	}
	if late, err := s.Get("late", ""); err != nil || late.Doc != "late" || late.Spec.Image != "mine" {
		t.Errorf("late is %+v, %v", late, err)
	}
}

func TestBadFiles(t *testing.T) {
	many := strings.Repeat("  - {x: 1}\n", maxErrors+5)
	for _, tt := range []struct{ name, yaml, want string }{
		{"nothing", "", "x.yaml: file is empty"},
		{"not YAML", "a: [", "x.yaml: line 1"},
		{"two documents", "doc: a\n---\ndoc: b", "x.yaml: more than one document"},
		{"a list", "- a", "x.yaml:1: want a table of keys"},
		{"too large", "doc: " + strings.Repeat("x", maxFile), "larger than 1048576 bytes"},
		{"a bad name", "name: ../x", "x.yaml: name \"../x\": use a letter"},
		{"a list as name", "name: [a]", "x.yaml:1: name: want one value"},
		{"an unknown key", "doc: x\nkey_perfix: y", `x.yaml:2: unknown key "key_perfix": the nearest known one is key_prefix`},
		{"a key of another table", "image: y", `x.yaml:1: unknown key "image": it belongs below spec`},
		{"a key of the agent's", "command: [a]", `it belongs below agent`},
		{"a hook at the top", "on_message: default", `it belongs below hooks`},
		{"a key of two tables", "tty: true", `x.yaml:1: unknown key "tty": the known ones are agent, bucket, dir, doc`},
		{"an unknown key below", "agent:\n  comand: [a]", `x.yaml:2: agent: unknown key "comand": the nearest known one is command`},
		{"an unknown key in a list", "spec:\n  mounts:\n    - {typ: tmpfs}", `x.yaml:3: spec.mounts[0]: unknown key "typ": the nearest known one is type`},
		{"a key twice", "agent:\n  tty: true\n  tty: false", `x.yaml:3: "agent.tty" is set twice, first in line 2`},
		{"a key that is no word", "? [a]\n: b", "x.yaml:1: the file: a key must be a word"},
		{"an anchor", "doc: &a b", "x.yaml:1: doc: write it out"},
		{"an alias", "doc: &a b\nvolume: *a", "x.yaml:2: volume: write it out"},
		{"a merge", "agent: &a {tty: true}\nspec:\n  <<: *a", "x.yaml:3: spec: a key must be a word"},
		{"a value for a table", "spec: linux", "x.yaml:1: spec: write keys and values below it"},
		{"a value for a list", "agent: {command: sh}", "x.yaml:1: agent.command: write a list"},
		{"a list for a value", "doc: [a]", "x.yaml:1: doc: want one value"},
		{"no bool", "init_from_s3: yes", `x.yaml:1: init_from_s3: "yes": write true or false`},
		{"no number", "keep_days: many", `x.yaml:1: keep_days: "many": write a whole number`},
		{"no fraction", "spec: {resources: {cpus: NaN}}", "write a number"},
		{"no finite number", "spec: {resources: {cpus: Inf}}", "write a number"},
		{"no small number", "spec: {tty: {rows: 70000}}", `x.yaml:1: spec.tty.rows: "70000": write a whole number`},
		{"no duration", "agent: {timeout: soon}", `x.yaml:1: agent.timeout: duration "soon"`},
		{"no size", "spec: {resources: {memory: much}}", `x.yaml:1: spec.resources.memory: size "much"`},
		{"what a Spec refuses", "spec: {network: {mode: of}}", `x.yaml: template x: spec: create: network mode "of"`},
		{"a sandbox's own", "spec: {name: a}", "spec.name: leave it out"},
		{"an agent that makes no sense", "agent: {command: [a]}", "x.yaml: template x: agent: command: use {prompt} once"},
		{"a secret", "agent: {secrets: {KEY: sk-12345}}", "x.yaml:1: agent.secrets.KEY: write a reference, env:NAME or file:/path, not the secret itself"},
		{"a secret with a path", "agent: {secrets: {KEY: {from: file:key}}}", "write a reference"},
		{"a secret of a list", "agent: {secrets: {KEY: [a]}}", "x.yaml:1: agent.secrets.KEY: write keys"},
		{"an unknown template", "extends: claude", "x.yaml: extends: unsupported provider: claude: known are claude-code, codex, shell"},
		{"itself", "extends: x", "x.yaml: extends: cycle: x, x"},
		{"another name of one", `name: "1"`, "name is an alias of claude-code"},

		{"an unknown hook", "hooks: {on_message: [defualt]}", `x.yaml:1: hooks.on_message: unknown hook "defualt": the nearest known one is default`},
		{"a hook unlike any", "hooks: {on_message: restart}", `unknown hook "restart": the known ones are base, default, pull, push, setup`},
		{"an unknown moment", "hooks: {on_mesage: default}", `x.yaml:1: hooks: unknown key "on_mesage": the nearest known one is on_message`},
		{"an empty hook", "hooks: {on_message: {user: root}}", "x.yaml:1: hooks.on_message: write the name of a hook, or a table with run or webhook"},
		{"both in one hook", "hooks: {on_message: {run: [a], webhook: 'https://a/'}}", "run and webhook: write each as a hook of its own"},
		{"a bad command", "hooks: {on_message: {run: [a], user: 'a b'}}", `x.yaml:1: hooks.on_message: exec: user "a b"`},
		{"a command with a token", "hooks: {on_message: {run: [a], token: env:A}}", "are for webhooks"},
		{"a webhook with a user", "hooks: {on_message: {webhook: 'https://a/', user: a}}", "are for commands"},
		{"a bad webhook", "hooks: {on_message: {webhook: 'http://a.example/secret'}}", "x.yaml:1: hooks.on_message: webhook a.example: http to another machine"},
		{"a webhook's secret that may be missing", "hooks: {on_message: {webhook: 'https://a/', secret: {from: env:A, optional: true}}}", "cannot be optional"},
		{"an unknown key of a hook", "hooks: {on_message: {comand: a}}", `x.yaml:1: hooks.on_message: unknown key "comand"`},
		{"a list of a hook", "hooks: {on_message: [[a]]}", "x.yaml:1: hooks.on_message: write keys and values below it"},
		{"too much", "spec:\n  mounts:\n" + many, "and 5 more"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := NewSet()
			err := s.LoadDir(writeFiles(t, map[string]string{"x.yaml": tt.yaml}))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
			if kind := atoll.KindOf(err); kind != atoll.ErrInvalid && !(kind == atoll.ErrAlreadyExists && tt.name == "another name of one") {
				t.Errorf("kind %q of %v, want invalid", kind, err)
			}
			if strings.Contains(err.Error(), "sk-12345") || strings.Contains(err.Error(), "/secret") {
				t.Errorf("a secret shows: %v", err)
			}
			if len(s.Names()) != 3 {
				t.Errorf("templates %v, want none added", s.Names())
			}
		})
	}
}

// All errors in all files are reported at once, and then no template is added.
func TestBadDir(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		kind  atoll.Kind
		want  []string
	}{
		{"two of one name", map[string]string{"a.yaml": "doc: x", "b.yaml": "name: a"}, atoll.ErrAlreadyExists, []string{"two templates have this name: one from ", "/a.yaml, one from ", "/b.yaml"}},
		{"two ends of one name", map[string]string{"a.yaml": "doc: x", "a.yml": "doc: x"}, atoll.ErrAlreadyExists, []string{"/a.yaml, one from ", "/a.yml"}},
		{"two mistakes", map[string]string{"a.yaml": "dco: x", "b.yaml": "dir: here", "c.yaml": "doc: good"}, atoll.ErrInvalid, []string{"a.yaml:1: unknown key", "b.yaml: template b: dir \"here\""}},
		{"a circle", map[string]string{"a.yaml": "extends: b", "b.yaml": "extends: c", "c.yaml": "extends: a"}, atoll.ErrInvalid, []string{"a.yaml: extends: cycle: a, b, c, a"}},
		{"a lost base", map[string]string{"a.yaml": "extends: b", "b.yaml": "extends: nope"}, atoll.ErrInvalid, []string{"b.yaml: extends: unsupported provider: nope"}},
		{"a name that none can have", map[string]string{"-.yaml": "doc: x"}, atoll.ErrInvalid, []string{`-.yaml: name "-"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := NewSet()
			err := s.LoadDir(writeFiles(t, tt.files))
			if atoll.KindOf(err) != tt.kind {
				t.Errorf("error %v of kind %q, want %q", err, atoll.KindOf(err), tt.kind)
			}
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q in it", err, want)
				}
			}
			if len(s.Names()) != 3 {
				t.Errorf("templates %v, want none added", s.Names())
			}
		})
	}
	t.Run("not there", func(t *testing.T) {
		if err := NewSet().LoadDir(filepath.Join(t.TempDir(), "no")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error %v, want not exist", err)
		}
	})
	t.Run("a link to nothing", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Symlink("nowhere", filepath.Join(dir, "a.yaml")); err != nil {
			t.Skip(err)
		}
		if err := NewSet().LoadDir(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error %v, want not exist", err)
		}
	})
	t.Run("too many", func(t *testing.T) {
		files := map[string]string{}
		for i := range maxFiles + 1 {
			files[strings.Repeat("a", 1+i%60)+strings.Repeat("b", i/60)+".yaml"] = "doc: x"
		}
		if err := NewSet().LoadDir(writeFiles(t, files)); !errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), "more than 1000") {
			t.Errorf("error %v, want invalid", err)
		}
	})
}

// Hooks of files run in order.
func TestFileHooks(t *testing.T) {
	var log []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		log = append(log, r.URL.Path+" "+r.Header.Get("Authorization")+" "+r.Header.Get(hooks.SignatureHeader)[:2])
	}))
	defer srv.Close()
	t.Setenv("HOOK_TOKEN", "letmein")
	t.Setenv("HOOK_KEY", "sign")
	s := NewSet()
	note := func(word string, err error) hooks.HookFunc {
		return func(context.Context, *hooks.HookData) error { log = append(log, word); return err }
	}
	failed := errors.New("failed")
	if err := errors.Join(s.RegisterHook("one", note("one", nil)), s.RegisterHook("two", note("two", nil)), s.RegisterHook("bad", note("bad", failed)),
		s.Parse("base", []byte("hooks: {on_terminate: one, on_stream_finish: [pull, push, default]}")),
		s.Parse("top", []byte(`
extends: base
hooks:
  on_cold_start: [one, bad, two]
  on_message:
    - bad
    - webhook: `+srv.URL+`/hook
      token: env:HOOK_TOKEN
      secret: env:HOOK_KEY
      tries: 1
      timeout: 5s
  on_terminate: [two, base, {run: [make, clean], env: [A=b], timeout: 5s}]
`))); err != nil {
		t.Fatal(err)
	}
	top, err := s.Get("top", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		hook hooks.HookFunc
		want []string
		err  error
	}{
		{"on_cold_start stops at an error", top.Hooks.OnColdStart, []string{"one", "bad"}, failed},
		{"on_message goes on", top.Hooks.OnMessage, []string{"bad", "/hook Bearer letmein t="}, failed},
		{"on_stream_finish comes from the base", top.Hooks.OnStreamFinish, nil, nil},
		{"on_terminate has that of the base in it", top.Hooks.OnTerminate, []string{"two", "one"}, atoll.ErrInvalid}, // there is no sandbox for the command
	} {
		log = nil
		if err := tt.hook(t.Context(), &hooks.HookData{}); !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
			t.Errorf("%s: error %v, want %v", tt.name, err, tt.err)
		}
		if !slices.Equal(log, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, log, tt.want)
		}
	}
}

// A fakeSandbox records the commands of Exec.
type fakeSandbox struct {
	atoll.Sandbox // nil: no other method is called
	ran           []string
}

func (b *fakeSandbox) Exec(_ context.Context, cmd *atoll.Command) (atoll.Process, error) {
	b.ran = append(b.ran, cmd.User+" "+cmd.Dir+" "+strings.Join(cmd.Args, " "))
	return endedProcess{}, nil
}

// An endedProcess has exited.
type endedProcess struct{ atoll.Process }

func (endedProcess) Wait(context.Context) (atoll.Exit, error) { return atoll.Exit{}, nil }

func TestCommandsOfFiles(t *testing.T) {
	s := NewSet()
	if err := s.Parse("x", []byte("extends: claude-code\ndir: /src\nhooks: {on_cold_start: [setup, {run: [npm, ci]}, {run: [ls], user: me, dir: sub}]}")); err != nil {
		t.Fatal(err)
	}
	x, err := s.Get("x", "")
	if err != nil {
		t.Fatal(err)
	}
	b := &fakeSandbox{}
	if err := x.Hooks.OnColdStart(t.Context(), &hooks.HookData{Sandbox: b}); err != nil {
		t.Error(err)
	}
	want := []string{"root /src mkdir -p /src/.agent/claude", "root /src chown -Rh agent /src", " /src npm ci", "me sub ls"}
	if !slices.Equal(b.ran, want) {
		t.Errorf("ran %q, want %q", b.ran, want)
	}
}
