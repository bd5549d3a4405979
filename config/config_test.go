package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/secretref"
)

// load loads the file text, if any, from its default path in a new home directory.
func load(t *testing.T, text string, env []string, flags map[string]string) (*Config, error) {
	t.Helper()
	home := t.TempDir()
	if text != "" {
		writeFile(t, filepath.Join(home, ".config", "atoll", "config.yaml"), text)
	}
	cfg, err := Load(Source{Env: append([]string{"HOME=" + home}, env...), Flags: flags})
	if err != nil {
		err = errors.New(strings.ReplaceAll(err.Error(), home, "HOME"))
	}
	return cfg, err
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDefaults(t *testing.T) {
	cfg, err := load(t, "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := cfg.Provider, DefaultProvider(runtime.GOOS); got != want {
		t.Errorf("provider = %q, want %q", got, want)
	}
	if !strings.HasSuffix(cfg.StateDir, "/.local/state/atoll") {
		t.Errorf("state_dir = %q, want it below the home directory", cfg.StateDir)
	}
	if got, want := cfg.Socket(), cfg.StateDir+"/atoll.sock"; got != want {
		t.Errorf("Socket() = %q, want %q", got, want)
	}
	for _, v := range cfg.Values() {
		if v.From != "default" {
			t.Errorf("%s comes from %q, want default", v.Key, v.From)
		}
		if v.Doc == "" {
			t.Errorf("%s has no documentation", v.Key)
		}
	}
}

func TestXDG(t *testing.T) {
	state, conf := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(conf, "atoll", "config.yaml"), "project: here\n")
	cfg, err := load(t, "", []string{"XDG_STATE_HOME=" + state, "XDG_CONFIG_HOME=" + conf}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := cfg.StateDir, filepath.Join(state, "atoll"); got != want {
		t.Errorf("state_dir = %q, want %q", got, want)
	}
	if cfg.Project != "here" {
		t.Errorf("project = %q, want that of the file in XDG_CONFIG_HOME", cfg.Project)
	}
	cfg, err = load(t, "", []string{"XDG_STATE_HOME=relative"}, nil)
	if err != nil || !filepath.IsAbs(cfg.StateDir) {
		t.Errorf("a relative XDG_STATE_HOME gave %v, %v; want it ignored", cfg, err)
	}
}

// Values of every type come from every source, in the right order of precedence.
func TestPrecedence(t *testing.T) {
	file := `# a comment
project: filed
provider: local
state_dir: ~/state
listen: [127.0.0.1:1, "unix:///run/a.sock"]
resources:
  memory: 512m
  cpus: 1.5
  processes: 7
log: {level: debug}
gvisor:
  debug: true
  host_paths: /opt/tool
local:
`
	env := []string{"ATOLL_PROJECT=environed", "ATOLL_LOG_LEVEL=error", "ATOLL_RESOURCES_DISK=1g", "ATOLL_CODE_PROJECT=x", "ATOLL_URL=", "PATH=/bin"}
	flags := map[string]string{"project": "flagged", "listen": "h:1,h:2"}
	cfg, err := load(t, file, env, flags)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"project":             "flagged --project",
		"provider":            "local config.yaml:3",
		"state_dir":           "state config.yaml:4",
		"listen":              "h:1,h:2 --listen",
		"url":                 " default",
		"resources.memory":    "512m config.yaml:7",
		"resources.cpus":      "1.5 config.yaml:8",
		"resources.processes": "7 config.yaml:9",
		"resources.disk":      "1g ATOLL_RESOURCES_DISK",
		"log.level":           "error ATOLL_LOG_LEVEL",
		"log.format":          "text default",
		"gvisor.debug":        "true config.yaml:12",
		"gvisor.host_paths":   "/opt/tool config.yaml:13",
		"gvisor.platform":     "systrap default",
	}
	for _, v := range cfg.Values() {
		w, ok := want[v.Key]
		if !ok {
			continue
		}
		got := v.Value + " " + filepath.Base(v.From)
		if v.Key == "state_dir" {
			got = filepath.Base(v.Value) + " " + filepath.Base(v.From)
		}
		if got != w {
			t.Errorf("%s: got %q, want %q", v.Key, got, w)
		}
		delete(want, v.Key)
	}
	for key := range want {
		t.Errorf("Values does not list %s", key)
	}
	if !slices.Equal(cfg.Listen, []string{"h:1", "h:2"}) || cfg.Resources.Memory != 512<<20 || !cfg.GVisor.Debug {
		t.Errorf("the fields differ from the values: %+v", cfg)
	}
}

func TestErrors(t *testing.T) {
	const at = "HOME/.config/atoll/config.yaml"
	tests := []struct {
		name  string
		file  string
		env   []string
		flags map[string]string
		want  []string // substrings of the error
	}{
		{name: "misspelt key", file: "\nprovdier: local\n", want: []string{at + `:2: unknown key "provdier": the nearest known one is provider`}},
		{name: "misspelt key in a table", file: "log:\n  levle: debug\n", want: []string{at + `:2: unknown key "log.levle": the nearest known one is log.level`}},
		{name: "key without its table", file: "memory: 1g\n", want: []string{`the nearest known one is resources.memory`}},
		{name: "misspelt table", file: "resource: {}\n", want: []string{`unknown key "resource": the nearest known one is resources`}},
		{name: "key in an empty table", file: "local: {dir: /x}\n", want: []string{`:1: unknown key "local.dir"`}},
		{name: "misspelt variable", env: []string{"ATOLL_PROVDIER=x"}, want: []string{"unknown variable ATOLL_PROVDIER: the nearest known one is ATOLL_PROVIDER"}},
		{name: "unknown flag key", flags: map[string]string{"nope": "x"}, want: []string{`unknown key "nope"`}},
		{name: "like no key", file: "colour: red\n", want: []string{at + `:1: unknown key "colour": atoll config --docs lists the known ones`}},
		{name: "unknown provider in the file", file: "provider: dokcer\n", want: []string{at + `:1: provider: "dokcer": use one of`}},
		{name: "invalid values beside unreadable ones", file: "resources: {cpus: -3, disk: lots}\n", want: []string{"resources.cpus: -3: must be positive", `"lots"`}},
		{name: "all at once", file: "a: 1\nurll: 2\n", env: []string{"ATOLL_B=1"}, want: []string{at + ":1: ", at + ":2: ", "ATOLL_B"}},
		{name: "twice", file: "url: http://a\nurl: http://b\n", want: []string{at + `:2: "url" is set twice, first in line 1`}},
		{name: "table for value", file: "project: {a: b}\n", want: []string{at + ":1: project: want a value, not a table"}},
		{name: "value for table", file: "log: debug\n", want: []string{at + ":1: log: want a table of keys"}},
		{name: "list for value", file: "project: [a, b]\n", want: []string{at + ":1: project: want one value, not a list"}},
		{name: "list for file", file: "- a\n", want: []string{at + ":1: the file: want a table of keys"}},
		{name: "not yaml", file: "a: [\n", want: []string{at + ": "}},
		{name: "garbage", file: "\x00\x01\xff", want: []string{at + ": "}},
		{name: "two documents", file: "project: a\n---\nproject: b\n", want: []string{at + ": more than one document"}},
		{name: "bad word", file: "log: {level: loud}\n", want: []string{at + `:1: log.level: "loud": use one of auto, debug, info, warn, error`}},
		{name: "bad number", env: []string{"ATOLL_RESOURCES_CPUS=many"}, want: []string{`ATOLL_RESOURCES_CPUS: "many": write a number`}},
		{name: "endless number", env: []string{"ATOLL_RESOURCES_CPUS=inf"}, want: []string{`ATOLL_RESOURCES_CPUS: "inf": write a number`}},
		{name: "bad count", file: "resources: {processes: 1.5}\n", want: []string{`"1.5": write a whole number`}},
		{name: "bad bool", file: "gvisor: {debug: maybe}\n", want: []string{`"maybe": write true or false`}},
		{name: "bad size", file: "resources: {memory: lots}\n", want: []string{`size "lots": write it like 512m or 2g`}},
		{name: "negative", file: "resources: {disk: -2}\n", want: []string{at + ":1: resources.disk: "}},
		{name: "relative state", env: []string{"ATOLL_STATE_DIR=x"}, want: []string{`ATOLL_STATE_DIR: "x": must be an absolute path`}},
		{name: "cache path", env: []string{"ATOLL_CACHE_PATHS=.tool/cache,/etc"}, want: []string{`ATOLL_CACHE_PATHS: "/etc": must be relative to the home directory`}},
		{name: "relative host path", file: "gvisor: {host_paths: [usr]}\n", want: []string{`"usr": must be an absolute path`}},
		{name: "relative host path of native", file: "native: {host_paths: [/opt, usr]}\n", want: []string{`native.host_paths: "usr": must be an absolute path`}},
		{name: "unknown provider", flags: map[string]string{"provider": "dokcer"}, want: []string{`--provider: "dokcer": use one of gvisor, docker, `}},
		{name: "bad project", env: []string{"ATOLL_PROJECT=a b"}, want: []string{`ATOLL_PROJECT: "a b": use a letter`}},
		{name: "password in the url", env: []string{"ATOLL_URL=http://user:hunter2@h/"}, want: []string{"ATOLL_URL: write it like", "set token or ATOLL_TOKEN instead"}},
		{name: "password in a bad url", env: []string{"ATOLL_URL=http://user:hunter2%zz@h/"}, want: []string{"ATOLL_URL: write it like"}},
		{name: "password without scheme", file: "url: user:hunter2@h\n", want: []string{at + ":1: url: write it like"}},
		{name: "password for a socket", env: []string{"ATOLL_URL=unix://user:hunter2@/path"}, want: []string{"write it like"}},
		{name: "bad url", env: []string{"ATOLL_URL=ftp://x"}, want: []string{`write it like http://host:port or unix:///path`}},
		{name: "bad listen", flags: map[string]string{"listen": "7070"}, want: []string{`--listen: "7070": write it like 127.0.0.1:7070`}},
		{name: "secret in the file", file: "token: hunter2\n", want: []string{at + ":1: token: write a reference, env:NAME or file:/path, not the secret itself"}},
		{name: "secret on the command line", flags: map[string]string{"token": "hunter2"}, want: []string{"--token: write a reference"}},
		{name: "secret in a relative file", file: "token: file:x\n", want: []string{"must be an absolute path"}},
		{name: "named file missing", env: []string{"ATOLL_CONFIG=/nonexistent/c.yaml"}, want: []string{"/nonexistent/c.yaml: no such file"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(t, tt.file, tt.env, tt.flags)
			if err == nil {
				t.Fatal("Load succeeded, want an error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got error:\n%v\nwant in it:\n%s", err, want)
				}
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error shows the secret: %v", err)
			}
		})
	}
}

func TestErrorKind(t *testing.T) {
	if _, err := Load(Source{Flags: map[string]string{"a": "b"}}); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("kind = %q, want %q", atoll.KindOf(err), atoll.ErrInvalid)
	}
}

func TestEmptyFiles(t *testing.T) {
	for _, text := range []string{"\n", "# nothing\n", "---\n", "{}\n", "project:\nlog:\n"} {
		if cfg, err := load(t, text, nil, nil); err != nil || cfg.Project != "default" {
			t.Errorf("file %q: got %v, want the defaults", text, err)
		}
	}
}

// Only the environment may have a secret itself, whatever the name of a file.
func TestSecretInAFileNamedLikeAVariable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ATOLL_c.yaml")
	writeFile(t, path, "token: hunter2\n")
	t.Chdir(filepath.Dir(path))
	if _, err := Load(Source{File: "ATOLL_c.yaml"}); err == nil || !strings.Contains(err.Error(), "not the secret itself") {
		t.Errorf("got %v, want it refused", err)
	}
}

func TestFileTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	writeFile(t, path, strings.Repeat("#", secretref.MaxFile+1))
	if _, err := Load(Source{File: path}); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("got %v, want a refusal of the large file", err)
	}
}

// No format of a Config shows a secret.
func TestSecretNeverPrints(t *testing.T) {
	cfg := &Config{Token: secretref.New("hunter2")}
	j, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range []string{string(j), fmt.Sprintf("%+v %#v", cfg, cfg)} {
		if strings.Contains(got, "hunter2") || !strings.Contains(got, "•••") {
			t.Errorf("printed %q", got)
		}
	}
}

func TestDefaultProvider(t *testing.T) {
	for goos, want := range map[string]string{"linux": "gvisor", "darwin": "vmdocker", "windows": "vmdocker"} {
		if got := DefaultProvider(goos); got != want {
			t.Errorf("DefaultProvider(%s) = %q, want %q", goos, got, want)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"provider", "project", "log.level", "url"}
	for name, want := range map[string]string{"provider": "provider", "porject": "project", "LOGLEVEL": "log.level", "uri": "url", "": "", "something": "", "privileged": "", "level": "log.level"} {
		if got := Nearest(name, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", name, got, want)
		}
	}
}

func FuzzFile(f *testing.F) {
	for _, text := range []string{"project: a\n", "log: {level: debug}\n", "a: &x {a: *x}\n", "listen: [*y]\n", "<<: {}\n", "? [a]\n: b\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "c.yaml")
		writeFile(t, path, text)
		cfg, err := Load(Source{File: path, Env: []string{"HOME=/home/x"}})
		if (cfg == nil) == (err == nil) {
			t.Errorf("Load = %v, %v, want exactly one of them", cfg, err)
		}
	})
}
