package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v3"

	"github.com/seed46cd37a8/atoll"
)

// An edit changes the lines of its setting and nothing else.
func TestEdit(t *testing.T) {
	set := func(key string, values ...string) Change { return Change{Key: key, Values: values} }
	unset := func(key string) Change { return Change{Key: key} }
	for _, tt := range []struct {
		name, before string
		changes      []Change
		want         string
	}{
		{"no file", "", []Change{set("project", "web")}, "project: web\n"},
		{"nested, no file", "", []Change{set("log.level", "debug")}, "log:\n  level: debug\n"},
		{"only comments", "# a\n\n# b\n", []Change{set("idle_stop", "1h")}, "# a\n\n# b\nidle_stop: 1h\n"},
		{"a marker", "---\n", []Change{set("idle_stop", "1h")}, "---\nidle_stop: 1h\n"},
		{
			"replace, with comments and blank lines", "# top\nproject: old # why\n\n# next\nidle_stop: 30m\n",
			[]Change{set("project", "new")},
			"# top\nproject: new  # why\n\n# next\nidle_stop: 30m\n",
		},
		{"no newline at the end", "project: a", []Change{set("idle_stop", "2h")}, "project: a\nidle_stop: 2h\n"},
		{
			"into a table", "log:\n    format: json   # machines read it\nproject: web\n", []Change{set("log.level", "warn")},
			"log:\n    format: json   # machines read it\n    level: warn\nproject: web\n",
		},
		{"into an empty table", "log:\nproject: web\n", []Change{set("log.level", "warn")}, "log:\n  level: warn\nproject: web\n"},
		{"a named table", "project: web\n", []Change{set("pool.small.size", "2")}, "project: web\npool:\n  small:\n    size: 2\n"},
		{"a list", "listen: [127.0.0.1:1]\n", []Change{set("listen", "127.0.0.1:7070", "unix:///run/a")}, "listen: ['127.0.0.1:7070', 'unix:///run/a']\n"},
		{"a list with commas", "", []Change{set("providers", "gvisor,docker")}, "providers: [gvisor, docker]\n"},
		{"a list of lines", "listen:\n  - 127.0.0.1:1\n  - 127.0.0.1:2\nproject: web\n", []Change{set("listen", "127.0.0.1:3")}, "listen: ['127.0.0.1:3']\nproject: web\n"},
		{"a number as text", "", []Change{set("project", "123")}, "project: \"123\"\n"},
		{"numbers", "", []Change{set("max_sandboxes", "7"), set("resources.cpus", "2"), set("idle_remove", "true")}, "max_sandboxes: 7\nresources:\n  cpus: 2\nidle_remove: true\n"},
		{"remove", "project: a\nidle_stop: 1h\n", []Change{unset("project")}, "idle_stop: 1h\n"},
		{"remove the last", "project: a\n", []Change{unset("project")}, ""},
		{"remove a table", "pool:\n  a: {size: 1}\n  b:\n    size: 2\nproject: x\n", []Change{unset("pool.b")}, "pool:\n  a: {size: 1}\nproject: x\n"},
		{"remove all of a table", "project: x\ncontexts:\n  p:\n    url: http://a\nidle_stop: 1h\n", []Change{unset("contexts.p")}, "project: x\nidle_stop: 1h\n"},
		{"remove all of a table in a table", "contexts:\n  p:\n    url: http://a\n    project: x\n  q:\n    url: http://b\n", []Change{unset("contexts.q")}, "contexts:\n  p:\n    url: http://a\n    project: x\n"},
		{"remove the only key of one table", "pool:\n  a:\n    size: 1\n  b:\n    size: 2\n", []Change{unset("pool.b.size")}, "pool:\n  a:\n    size: 1\n"},
		{"remove what is not there", "project: a\n", []Change{unset("idle_stop")}, "project: a\n"},
		{"replace a table's keys", "contexts:\n  p:\n    url: http://a\n    project: x\n", []Change{unset("contexts.p"), set("contexts.p.url", "http://b")}, "contexts:\n  p:\n    url: http://b\n"},
		{"windows lines", "project: a\r\nidle_stop: 1h\r\n", []Change{set("project", "b")}, "project: b\nidle_stop: 1h\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src, path := newSource(t, tt.before)
			if err := Edit(src, tt.changes...); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(path)
			if err != nil && !(tt.want == tt.before && errors.Is(err, fs.ErrNotExist)) || string(data) != tt.want {
				t.Errorf("the file has %q, %v, want %q", data, err, tt.want)
			}
			if _, err := Load(src); err != nil {
				t.Error(err)
			}
		})
	}
}

// newSource returns a source whose file has a text, unless that is "".
func newSource(t *testing.T, text string) (src Source, path string) {
	t.Helper()
	home := t.TempDir()
	path = filepath.Join(home, ".config", "atoll", "config.yaml")
	if text != "" {
		writeFile(t, path, text)
	}
	return Source{Env: []string{"HOME=" + home}}, path
}

// Edit refuses a change that it cannot make, and leaves the file as it is.
func TestEditRefuses(t *testing.T) {
	for _, tt := range []struct{ name, before, key, value, want string }{
		{"unknown key", "project: a\n", "provdier", "docker", `unknown key "provdier": the nearest known one is provider`},
		{"a table", "project: a\n", "log", "debug", "log is a table: set one of its keys, as in atoll config set log.level VALUE"},
		{"a table of tables", "project: a\n", "pool", "x", "pool is a table: set one of its keys, as in atoll config set pool.NAME."},
		{"a bad value", "project: a\n", "log.level", "loud", `log.level: "loud": use one of auto, debug, info, warn, error`},
		{"a bad duration", "project: a\n", "idle_stop", "soon", "idle_stop: "},
		{"a secret", "project: a\n", "token", "s3cret", "token: write a reference, env:NAME or file:/path, not the secret itself"},
		{"a value that others exclude", "project: a\n", "context", "prod", `no context is called "prod": atoll login URL adds one`},
		{"a bad name", "project: a\n", "pool.a b.size", "1", `pool: invalid name "a b"`},
		{"a mistake elsewhere", "project: a\nnosuch: 1\n", "idle_stop", "1h", `config.yaml:2: unknown key "nosuch"`},
		{"flow style", "{project: a}\n", "idle_stop", "1h", "idle_stop: the file is written in a way that Atoll cannot change: use atoll config edit"},
		{"an anchor", "project: &p a\nproviders: [*p]\n", "project", "b", "project: the file is written in a way"},
		{"a block of lines", "project: >-\n  a\n  b\n", "project", "b", "project: the file is written in a way"},
		{"no YAML", "}{\n", "project", "b", "config.yaml: did not find expected node content"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src, path := newSource(t, tt.before)
			err := Edit(src, Change{Key: tt.key, Values: []string{tt.value}})
			if atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("Edit: %v, want %q in it", err, tt.want)
			}
			if data, err := os.ReadFile(path); err != nil || string(data) != tt.before {
				t.Errorf("the file has %q, %v", data, err)
			}
			if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
				t.Errorf("left: %v, %v", entries, err)
			}
		})
	}
}

// Many programs edit the file at once, and no edit is lost.
func TestEditConcurrently(t *testing.T) {
	src, _ := newSource(t, "")
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if err := Edit(src, Change{Key: fmt.Sprintf("pool.p%d.size", i), Values: []string{"1"}}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if cfg, err := Load(src); err != nil || len(cfg.Pools) != 20 {
		t.Errorf("%d pools, %v", len(cfg.Pools), err)
	}
}

// Replace refuses a text with mistakes, and a file that has changed.
func TestReplace(t *testing.T) {
	src, path := newSource(t, "project: a\n")
	if err := Replace(src, []byte("project: a\n"), []byte("projekt: b\n")); err == nil || !strings.Contains(err.Error(), "config.yaml:1: unknown key") {
		t.Errorf("a mistake: %v", err)
	}
	if err := Replace(src, []byte("project: x\n"), []byte("project: b\n")); err == nil || !strings.Contains(err.Error(), "edit it again") {
		t.Errorf("another program's change: %v", err)
	}
	if err := Replace(src, []byte("project: a\n"), []byte("project: b\n")); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "project: b\n" {
		t.Errorf("the file has %q, %v", data, err)
	}
}

// The schema accepts the files that Load accepts, with the examples of the manual, and finds mistakes.
func TestJSONSchema(t *testing.T) {
	var schema jsonschema.Schema
	if err := json.Unmarshal(JSONSchema(), &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	validate := func(text string) error {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			return err
		}
		return resolved.Validate(v)
	}
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := 0
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range bytes.Split(data, []byte("\n```"))[1:] {
			_, text, _ := bytes.Cut(block, []byte("\n"))
			if src, _ := newSource(t, ""); bytes.HasPrefix(block, []byte("yaml")) && Check(src, text) == nil {
				examples++
				if err := validate(string(text)); err != nil {
					t.Errorf("%s: %v\n%s", page, err, text)
				}
			}
		}
	}
	if examples < 10 {
		t.Errorf("the manual has %d examples", examples)
	}
	for text, want := range map[string]string{
		"provdier: docker":             "provdier",
		"log: {level: loud}":           "level",
		"token: secret":                "token",
		"max_sandboxes: many":          "max_sandboxes",
		"pool: {a b: {size: 1}}":       "pool",
		"pool: {a: {sise: 1}}":         "sise",
		"idle_stop: [1h]":              "idle_stop",
		"contexts: {p: {colour: red}}": "colour",
	} {
		if err := validate(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", text, err, want)
		}
	}
}
