package frontmatter

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// newSandbox returns a Sandbox with its defaults, modified by change.
func newSandbox(mode Mode, runtime string, change ...func(*Sandbox)) *Sandbox {
	s := &Sandbox{Mode: mode, Runtime: runtime, Session: SessionWorkflow, Limits: Limits{300 * time.Second, 10485760, 100}}
	for _, c := range change {
		c(s)
	}
	return s
}

func TestExamples(t *testing.T) {
	dir := filepath.Join("..", "..", "examples", "agents")
	for file, want := range map[string]*Agent{
		"code-developer.md": {
			Name: "Code Developer", Sandbox: newSandbox(ModeCode, "linux"),
			Body: "\nYou are a developer with access to a full Linux sandbox. You can install packages,\ncompile code, run scripts, and execute any shell commands.\n",
		},
		"data-analyst.md": {
			Name: "data-analyst", Sandbox: newSandbox(ModeCompute, "python", func(s *Sandbox) {
				s.AllowNetwork, s.PipPackages = true, []string{"pandas", "requests>=2"}
			}),
			Body: "\nYou answer questions about data. Compute what you say with sandbox_run.\n",
		},
	} {
		got, err := Load(filepath.Join(dir, file))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Load(%s) = %+v, %v, want %+v", file, got, err, want)
		}
	}
}

func ExampleLoad() {
	agent, err := Load("../../examples/agents/code-developer.md")
	if err != nil {
		fmt.Println(err)
		return
	}
	image, err := Images{Allow: []string{"ubuntu:*"}}.Resolve(agent.Sandbox.Runtime)
	fmt.Println(agent.Name, agent.Sandbox.Mode, image, err)
	// Output: Code Developer code ubuntu:22.04 <nil>
}

func TestSandbox(t *testing.T) {
	for _, tt := range []struct {
		yaml string
		want *Sandbox
	}{
		// no sandbox
		{"", nil},
		{"model: x", nil},
		{"# nothing", nil},
		{"~", nil},
		{"sandbox:", nil},
		{"sandbox: null", nil},
		{"sandbox: ~", nil},
		{`sandbox: ""`, nil},
		{"sandbox: &a\nother: *a", nil},

		// a runtime
		{"sandbox: python", newSandbox(ModeCompute, "python")},
		{"sandbox: 'node'", newSandbox(ModeCompute, "node")},
		{"sandbox: bash", newSandbox(ModeCompute, "bash")},
		{"sandbox: linux", newSandbox(ModeCompute, "bash")},
		{"sandbox: shell", newSandbox(ModeCompute, "bash")},
		{"sandbox: golang:1.22", newSandbox(ModeCompute, "golang:1.22")},
		{"sandbox: host", newSandbox(ModeCompute, "host")},
		{"sandbox: >-\n  ghcr.io/acme/tools:1", newSandbox(ModeCompute, "ghcr.io/acme/tools:1")},

		// a table
		{"sandbox: {}", newSandbox(ModeCompute, "")},
		{"sandbox: {runtime: }", newSandbox(ModeCompute, "")},
		{"sandbox: {runtime: python}", newSandbox(ModeCompute, "python")},
		{"sandbox: {runtime: linux, mode: compute}", newSandbox(ModeCompute, "bash")},
		{"sandbox: {mode: code}", newSandbox(ModeCode, "")},
		{"sandbox: {mode: code, runtime: ''}", newSandbox(ModeCode, "")},
		{"sandbox: {runtime: shell, mode: code}", newSandbox(ModeCode, "shell")},
		{"sandbox: {mode: code, runtime: python, session: workflow}", newSandbox(ModeCode, "python")},
		{"sandbox: {mode: code, session: agent}", newSandbox(ModeCode, "", func(s *Sandbox) { s.Session = SessionAgent })},
		{"sandbox: {mode: , session: , limits: , allow_network: , pip_packages: , npm_packages: }", newSandbox(ModeCompute, "")},
		{"sandbox: {limits: {timeout_seconds: }}", newSandbox(ModeCompute, "")},
		{"sandbox: {limits: {timeout_seconds: 1}}", newSandbox(ModeCompute, "", func(s *Sandbox) { s.Limits.Timeout = time.Second })},
		{"sandbox: {limits: {timeout_seconds: 86400, max_file_size_bytes: 1073741824, max_files: 1000000}}",
			newSandbox(ModeCompute, "", func(s *Sandbox) { s.Limits = Limits{24 * time.Hour, 1 << 30, 1e6} })},
		{"sandbox: {allow_network: true}", newSandbox(ModeCompute, "", func(s *Sandbox) { s.AllowNetwork = true })},
		{"sandbox: {allow_network: False}", newSandbox(ModeCompute, "")},
		{"sandbox: {pip_packages: []}", newSandbox(ModeCompute, "")},
		{"sandbox: {runtime: node, npm_packages: ['@scope/a@^1', left-pad]}",
			newSandbox(ModeCompute, "node", func(s *Sandbox) { s.NPMPackages = []string{"@scope/a@^1", "left-pad"} })},

		// other YAML syntax
		{"? sandbox\n: python", newSandbox(ModeCompute, "python")},
		{`"sandbox": python`, newSandbox(ModeCompute, "python")},
		{"one: &one python\nsandbox: *one", newSandbox(ModeCompute, "python")},
		{"one: &one {mode: code}\nsandbox: *one", newSandbox(ModeCode, "")},
		{"one: &k sandbox\n*k : python", newSandbox(ModeCompute, "python")},
		{"one: &one {model: x}\n<<: *one\nsandbox: python", newSandbox(ModeCompute, "python")},

		// keys of other programs
		{"model: x\nmodel: y\nmetadata: [1, 2]\ntools: {a: {b: !c d}}\n? [1, 2]\n: 3\n7: 8\nsandbox: python", newSandbox(ModeCompute, "python")},
		{"Sandbox: [not, ours]", nil},
	} {
		a, err := Parse("a.md", strings.NewReader("---\n"+tt.yaml+"\n---\nbody"))
		if err != nil {
			t.Errorf("%q: %v", tt.yaml, err)
			continue
		}
		if !reflect.DeepEqual(a.Sandbox, tt.want) || a.Body != "body" {
			t.Errorf("%q: %+v, body %q, want %+v", tt.yaml, a.Sandbox, a.Body, tt.want)
		}
	}
}

func TestName(t *testing.T) {
	for _, tt := range []struct{ file, yaml, want string }{
		{"coder.md", "", "coder"},
		{"agents/coder.prompt", "model: x", "coder"},
		{"coder", "metadata: {name: }", "coder"},
		{".md", "", ".md"},
		{"coder.md", "metadata: {name: The Coder}", "The Coder"},
		{"coder.md", "metadata: {version: 1, name: ' The Coder '}", "The Coder"},
		{"coder.md", "metadata: {name: 7}", "7"},
		{"coder.md", "n: &n The Coder\nmetadata: {name: *n}", "The Coder"},
		{"coder.md", "metadata: {name: ' '}", "coder"},
		{"coder.md", "metadata: {name: [a]}", "coder"},
		{"coder.md", "metadata: The Coder", "coder"},
		{"coder.md", "metadata:", "coder"},
		{"coder.md", "name: The Coder", "coder"},
	} {
		a, err := Parse(tt.file, strings.NewReader("---\n"+tt.yaml+"\n---\n"))
		if err != nil || a.Name != tt.want {
			t.Errorf("%s with %q: %+v, %v, want the name %q", tt.file, tt.yaml, a, err, tt.want)
		}
	}
}

func TestBody(t *testing.T) {
	const python, none = "python", ""
	for _, tt := range []struct{ text, runtime, body string }{
		{"---\nsandbox: python\n---\nbody\n", python, "body\n"},
		{"---\nsandbox: python\n---", python, ""},
		{"---\nsandbox: python\n---\n", python, ""},
		{"---\nsandbox: python\n---\n\n  body", python, "\n  body"},
		{"---\nsandbox: python\n---\na\n---\nsandbox: node\n---\nb\n", python, "a\n---\nsandbox: node\n---\nb\n"},
		{"---\r\nsandbox: python\r\n---\r\na\r\nb", python, "a\r\nb"},
		{"--- \t\nsandbox: python\n---  \nbody", python, "body"},
		{"\uFEFF---\nsandbox: python\n---\nbody", python, "body"},
		{"\n \t\r\n---\nsandbox: python\n---\nbody", python, "body"},
		{"---\nmodel: |\n  a\n  ---\n  b\nsandbox: python\n---\nbody", python, "body"},
		{"---\nmodel: a---b\nsandbox: python # ---\n---\nbody", python, "body"},
		{"---\n---\nbody", none, "body"},

		// no front matter
		{"", none, ""},
		{"\n\n", none, "\n\n"},
		{"\uFEFF", none, ""},
		{"body", none, "body"},
		{"# Title\n\n---\nsandbox: python\n---\n", none, "# Title\n\n---\nsandbox: python\n---\n"},
		{"----\nsandbox: python\n----\n", none, "----\nsandbox: python\n----\n"},
		{" ---\nsandbox: python\n ---\n", none, " ---\nsandbox: python\n ---\n"},
		{"--\n", none, "--\n"},
	} {
		a, err := Parse("a.md", strings.NewReader(tt.text))
		if err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		runtime := ""
		if a.Sandbox != nil {
			runtime = a.Sandbox.Runtime
		}
		if runtime != tt.runtime || a.Body != tt.body {
			t.Errorf("%q: runtime %q, body %q, want %q, %q", tt.text, runtime, a.Body, tt.runtime, tt.body)
		}
	}
}

func TestErrors(t *testing.T) {
	const image = "write linux, python, node, or a name like golang:1.22 or registry.example.com/team/app:1, in lower case"
	const runtime = "write linux, python, node, bash or an image like golang:1.22; for no sandbox leave the key sandbox out"
	for _, tt := range []struct{ yaml, want string }{
		// types of sandbox
		{"sandbox: false", `a.md:2: sandbox: "false": ` + runtime},
		{"sandbox: no", `a.md:2: sandbox: "no": ` + runtime},
		{"sandbox: None", `a.md:2: sandbox: "None": ` + runtime},
		{"model: x\nsandbox: 3.11", `a.md:3: sandbox: "3.11": ` + runtime},
		{"sandbox: [python]", "a.md:2: sandbox: a list: write a runtime like python, or keys like runtime and mode"},
		{"sandbox: code", `a.md:2: sandbox: "code" is a mode: write "mode: code" below sandbox`},
		{"sandbox: Python", `a.md:2: sandbox: "Python": not an image: ` + image},
		{"sandbox: python\nsandbox: node", "a.md:3: sandbox is set twice, first in line 2: keep one"},
		{"sandbox:\nsandbox: node", "a.md:3: sandbox is set twice, first in line 2: keep one"},
		{"x: &x {sandbox: python}\n<<: *x", "a.md:3: sandbox: not supported in <<: write it into the front matter itself"},
		{"x: &x {sandbox: python}\n<<: [{a: b}, *x]", "a.md:3: sandbox: not supported in <<: write it into the front matter itself"},

		// runtime
		{"sandbox: {runtime: [python]}", "a.md:2: sandbox.runtime: a list: " + runtime},
		{"sandbox: {runtime: {}}", "a.md:2: sandbox.runtime: a table: " + runtime},
		{"sandbox: {runtime: 3}", `a.md:2: sandbox.runtime: "3": ` + runtime},
		{"sandbox: {runtime: a b}", `a.md:2: sandbox.runtime: "a b": not an image: ` + image},
		{"sandbox: {runtime: 'https://ghcr.io/a'}", `a.md:2: sandbox.runtime: "https://ghcr.io/a": not an image: leave out the https:// in front`},
		{"sandbox: {runtime: 'a:'}", `a.md:2: sandbox.runtime: "a:": not an image: ` + image},
		{"sandbox: {runtime: compute}", `a.md:2: sandbox.runtime: "compute" is a mode: write "mode: compute" below sandbox`},
		{"r: &r A\nsandbox:\n  runtime: *r", `a.md:4: sandbox.runtime: "A": not an image: ` + image},

		// words
		{"sandbox: {mode: Code}", `a.md:2: sandbox.mode: "Code": write compute or code`},
		{"sandbox: {mode: true}", `a.md:2: sandbox.mode: "true": write compute or code`},
		{"sandbox: {session: forever}", `a.md:2: sandbox.session: "forever": write workflow or agent`},
		{"sandbox: {allow_network: yes}", `a.md:2: sandbox.allow_network: "yes": write true or false, without quotes`},
		{"sandbox: {allow_network: 'true'}", `a.md:2: sandbox.allow_network: "true": write true or false, without quotes`},
		{"sandbox: {allow_network: 1}", `a.md:2: sandbox.allow_network: "1": write true or false, without quotes`},
		{"sandbox: {allow_network: []}", "a.md:2: sandbox.allow_network: a list: write true or false, without quotes"},

		// keys
		{"sandbox: {image: x}", `a.md:2: sandbox: unknown key "image": write the image as runtime`},
		{"sandbox: {timeout_seconds: 3}", `a.md:2: sandbox: unknown key "timeout_seconds": it belongs below limits`},
		{"sandbox: {Mode: code}", `a.md:2: sandbox: unknown key "Mode": the known ones are allow_network, limits, mode, npm_packages, pip_packages, runtime, session`},
		{"sandbox: {limits: {memory: 3}}", `a.md:2: sandbox.limits: unknown key "memory": the known ones are max_file_size_bytes, max_files, timeout_seconds`},
		{"sandbox: {? [a] : b}", "a.md:2: sandbox: a key must be a word"},
		{"x: &x {mode: code}\nsandbox:\n  <<: *x", `a.md:4: sandbox: unknown key "<<": write the keys out`},
		{"sandbox:\n  mode: code\n\n  mode: code", "a.md:5: sandbox.mode is set twice, first in line 3: keep one"},
		{"sandbox: {mode: , mode: code}", "a.md:2: sandbox.mode is set twice, first in line 2: keep one"},

		// limits
		{"sandbox: {limits: 300}", `a.md:2: sandbox.limits: "300": write keys like timeout_seconds below it`},
		{"sandbox: {limits: [300]}", "a.md:2: sandbox.limits: a list: write keys like timeout_seconds below it"},
		{"sandbox: &s {limits: *s}", `a.md:2: sandbox.limits: unknown key "limits": the known ones are max_file_size_bytes, max_files, timeout_seconds`},

		// packages
		{"sandbox: {pip_packages: pandas}", `a.md:2: sandbox.pip_packages: "pandas": write a list, like [first, second]`},
		{"sandbox: {pip_packages: [a, '--index-url=http://x']}", `a.md:2: sandbox.pip_packages[1]: "--index-url=http://x": write the name of a package, in quotes if need be; options are not allowed`},
		{"sandbox: {npm_packages: [\"a\\nb\"]}", `a.md:2: sandbox.npm_packages[0]: "a\nb": write the name of a package, in quotes if need be; options are not allowed`},
		{"sandbox: {npm_packages: [1]}", `a.md:2: sandbox.npm_packages[0]: "1": write the name of a package, in quotes if need be; options are not allowed`},
		{"sandbox: {npm_packages: ['']}", `a.md:2: sandbox.npm_packages[0]: "": write the name of a package, in quotes if need be; options are not allowed`},
		{"sandbox: {npm_packages: [' a']}", `a.md:2: sandbox.npm_packages[0]: " a": write the name of a package, in quotes if need be; options are not allowed`},
		{"sandbox: {npm_packages: [[a]]}", `a.md:2: sandbox.npm_packages[0]: a list: write the name of a package, in quotes if need be; options are not allowed`},
		{"sandbox: {npm_packages: [" + strings.Repeat("a,", 201) + "]}", `a.md:2: sandbox.npm_packages: 201 packages: at most 200; make an image that has them`},

		// the file
		{"- a", `a.md:2: the front matter is not a table: write it as lines like "sandbox: python"`},
		{"Some words", `a.md:2: the front matter is not a table: write it as lines like "sandbox: python"`},
		{"model: x\n...\nsandbox: python", "a.md:4: the front matter is not YAML: did not find expected <document start>; line 3 ends it: take it out"},
		{"model: x\n--- {sandbox: python}", "a.md:3: a second document begins here: keep one, between two lines ---"},
		{"model: x\n--- {", "a.md:3: the front matter is not YAML: did not find expected node content"},
		{"model: x\nsandbox: a: b", "a.md:3: the front matter is not YAML: mapping values are not allowed in this context"},
		{"sandbox: *x", "a.md:2: the front matter is not YAML: unknown anchor 'x' referenced"},
		{"model: x\nsandbox:\n  mode: code\n session: agent", "a.md:5: the front matter is not YAML: did not find expected key"},
		{"model: x\ntools:\n  - a\n  b: c", "a.md:5: the front matter is not YAML: did not find expected '-' indicator"},
		{"model: x\nname: \"a\" b\nsandbox: python", "a.md:3: the front matter is not YAML: did not find expected key"},
		{"model: {a: b}\ntools: [a,\n  b\nsandbox: python", "a.md:3: the front matter is not YAML: did not find expected ',' or ']'"},
		{"a: b\n\nmodel: x\nother: *y\n", "a.md:5: the front matter is not YAML: unknown anchor 'y' referenced"},
		{"sandbox:\n\tmode: code", "a.md:3: the front matter is not YAML: found character that cannot start any token; line 3 is indented with a tab: use spaces"},
		{"a: \x01", "a.md:2: the front matter is not YAML: control characters are not allowed"},
	} {
		wantError(t, tt.yaml, "---\n"+tt.yaml+"\n---\nbody", "agent: "+tt.want)
	}
	for _, bad := range []string{"0", "-1", "1.5", "1e3", "'300'", "60s", "0x10", "010", "+5", "1_000", "true", "[1]", "{}", "99999999999999999999", ".inf", ".nan", "abc"} {
		for key, most := range map[string]string{"timeout_seconds": "86400", "max_file_size_bytes": "1073741824", "max_files": "1000000"} {
			text := fmt.Sprintf("---\nsandbox:\n  limits:\n    %s: %s\n---\n", key, bad)
			shown := map[string]string{"[1]": "a list", "{}": "a table"}[bad]
			if shown == "" {
				shown = `"` + strings.Trim(bad, "'") + `"`
			}
			wantError(t, bad, text, fmt.Sprintf("agent: a.md:4: sandbox.limits.%s: %s: write a whole number from 1 to %s, without unit or quotes", key, shown, most))
		}
	}
	for key, much := range map[string]string{"timeout_seconds": "86401", "max_file_size_bytes": "1073741825", "max_files": "1000001"} {
		_, err := Parse("a.md", strings.NewReader("---\nsandbox: {limits: {"+key+": "+much+"}}\n---\n"))
		if !errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), key+`: "`+much+`": write a whole number`) {
			t.Errorf("%s: %s: %v, want it refused", key, much, err)
		}
	}
}

func wantError(t *testing.T, what, text, want string) {
	t.Helper()
	a, err := Parse("a.md", strings.NewReader(text))
	if a != nil || err == nil || err.Error() != want || atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("%q: %+v, %v\nwant %s", what, a, err, want)
	}
}

func TestWholeFileErrors(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"---", "agent: a.md:1: the front matter is not closed: put a line --- between it and the text"},
		{"\n---\nsandbox: python\n ---\n", "agent: a.md:2: the front matter is not closed: put a line --- between it and the text"},
		{"---\nsandbox: python\n----\n--\n", "agent: a.md:1: the front matter is not closed: put a line --- between it and the text"},
		{"\n\n---\nsandbox: false\n---", `agent: a.md:4: sandbox: "false": write linux, python, node, bash or an image like golang:1.22; for no sandbox leave the key sandbox out`},
		{"\uFEFF---\r\na: b\r\nsandbox: 1\r\n---", `agent: a.md:3: sandbox: "1": write linux, python, node, bash or an image like golang:1.22; for no sandbox leave the key sandbox out`},
		{"---\na: b\n---\nümlaut\nb\xffd\n", "agent: a.md:5: not UTF-8: save the file in that encoding"},
		{"\xff\xfe-\x00-\x00-\x00\n\x00", "agent: a.md:1: not UTF-8: save the file in that encoding"},
		{strings.Repeat("x", maxFile+1), "agent: a.md: larger than 1048576 bytes: keep what the agent works on in files of their own"},
	} {
		wantError(t, tt.text[:min(len(tt.text), 40)], tt.text, tt.want)
	}
	text := strings.Repeat("x", maxFile)
	if a, err := Parse("a.md", strings.NewReader(text)); err != nil || a.Body != text {
		t.Errorf("a file of %d bytes: %v, want it whole", maxFile, err)
	}
}

func TestAllErrorsAtOnce(t *testing.T) {
	text := "---\nsandbox:\n  mode: fast\n  limits:\n    max_files: 0\n    memory: 1\n  allow_network: maybe\nmodel: x\nsandbox: node\n---\n"
	_, err := Parse("a.md", strings.NewReader(text))
	for _, want := range []string{"a.md:3: sandbox.mode", "a.md:5: sandbox.limits.max_files", `a.md:6: sandbox.limits: unknown key "memory"`, "a.md:7: sandbox.allow_network", "a.md:9: sandbox is set twice"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it too", err, want)
		}
	}

	_, err = Parse("a.md", strings.NewReader("---\nsandbox: {pip_packages: ["+strings.Repeat("1,", 50)+"]}\n---\n"))
	if lines := strings.Split(fmt.Sprint(err), "\n"); len(lines) != maxErrors+1 || lines[maxErrors] != "a.md: and 30 more" {
		t.Errorf("%v\nwant %d errors and how many more there are", err, maxErrors)
	}
}

// Each of these could be made to cost far more than its size.
func TestHostileFiles(t *testing.T) {
	bomb := "b0: &b0 [x]\n"
	for i := range 40 {
		bomb += fmt.Sprintf("b%d: &b%d [%s]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*b%d,", i), 9))
	}
	half := maxFile/2 - 100
	for name, tt := range map[string]struct {
		yaml string
		ok   bool
	}{
		"aliases of others":  {bomb + "sandbox: python", true},
		"aliases below":      {bomb + "sandbox: {pip_packages: *b40}", false},
		"aliases as sandbox": {bomb + "sandbox: *b40", false},
		"in itself":          {"sandbox: &a [*a]", false},
		"merged into itself": {"<<: &b {x: *b}", true},
		"deep":               {"x: " + strings.Repeat("[", half) + strings.Repeat("]", half), false},
		"deep tables":        {"x: " + strings.Repeat("{a: ", half/4) + strings.Repeat("}", half/4), false},
		"many keys":          {strings.Repeat("a: b\n", maxFile/6) + "sandbox: python", true},
		"many sandboxes":     {strings.Repeat("sandbox: python\n", maxFile/17), false},
		"many bad keys":      {"sandbox:" + strings.Repeat("\n x: 1", maxFile/8), false},
		"long word":          {"sandbox: " + strings.Repeat("a", maxFile-100), false},
		"long path":          {"sandbox: a" + strings.Repeat("/a", half), false},
		"dashes":             {"sandbox: a" + strings.Repeat("-", maxFile-100), false},
		"long tag":           {"sandbox: a:" + strings.Repeat("a", 200), false},
	} {
		_, err := Parse("a.md", strings.NewReader("---\n"+tt.yaml+"\n---\n"))
		if (err == nil) != tt.ok || err != nil && (atoll.KindOf(err) != atoll.ErrInvalid || len(err.Error()) > 8<<10) {
			t.Errorf("%s: %.200v, want ok %v, or a short error", name, err, tt.ok)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "coder.md")
	if err := os.WriteFile(file, []byte("---\nsandbox: false\n---\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file); err == nil || !strings.HasPrefix(err.Error(), "agent: "+file+":2: ") {
		t.Errorf("Load of a wrong file: %v, want its path and line", err)
	}
	if _, err := Load(filepath.Join(dir, "none.md")); !errors.Is(err, fs.ErrNotExist) || atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("Load of no file: %v, want ErrNotExist", err)
	}
	if _, err := Load(dir); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "a directory") {
		t.Errorf("Load of a directory: %v, want that it is one", err)
	}
}

func TestReadErrors(t *testing.T) {
	for _, tt := range []struct {
		err  error
		kind atoll.Kind
	}{
		{io.ErrUnexpectedEOF, atoll.ErrInternal},
		{fs.ErrPermission, atoll.ErrDenied},
		{atoll.E("read", "web", atoll.ErrStopped, nil), atoll.ErrStopped},
	} {
		r := io.MultiReader(strings.NewReader("---\nsandbox: python\n---\n"), iotest.ErrReader(tt.err))
		if a, err := Parse("a.md", r); a != nil || !errors.Is(err, tt.err) || atoll.KindOf(err) != tt.kind {
			t.Errorf("%+v, %v, want %v as %q", a, err, tt.err, string(tt.kind))
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "body", "---\n---\n", "---\nsandbox: python\n---\nbody",
		"---\r\nsandbox:\r\n  mode: code\r\n  limits: {max_files: 3}\r\n---\r\n",
		"---\nsandbox: &a {limits: *a}\n---\n", "---\n<<: [{sandbox: x}]\n---\n",
		"---\nsandbox: {pip_packages: [a, b], npm_packages: [c], allow_network: true, session: agent}\n---\n",
		"---\n\tsandbox: x\n---\n", "\uFEFF\n---\nmetadata: {name: x}\n...\n---\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := Parse("a.md", strings.NewReader(text))
		if err != nil {
			if a != nil || atoll.KindOf(err) != atoll.ErrInvalid || !strings.HasPrefix(err.Error(), "agent: a.md:") {
				t.Errorf("%+v, %v, want ErrInvalid with the file's name", a, err)
			}
			return
		}
		if !strings.HasSuffix(text, a.Body) || a.Name == "" {
			t.Errorf("name %q, body %q, want a name and the end of the file", a.Name, a.Body)
		}
		s := a.Sandbox
		if s == nil {
			return
		}
		if s.Mode != ModeCompute && s.Mode != ModeCode || s.Session != SessionWorkflow && s.Session != SessionAgent {
			t.Errorf("mode %q, session %q", s.Mode, s.Session)
		}
		if l := s.Limits; l.Timeout < time.Second || l.Timeout > maxTimeout || l.MaxFileSize < 1 || l.MaxFileSize > maxFileSize || l.MaxFiles < 1 || l.MaxFiles > maxFiles {
			t.Errorf("limits %+v", l)
		}
		if _, err := (Images{Allow: []string{"x"}}).Resolve(s.Runtime); atoll.KindOf(err) == atoll.ErrInvalid {
			t.Errorf("runtime %q: %v", s.Runtime, err)
		}
		for _, p := range append(s.PipPackages, s.NPMPackages...) {
			if !validPackage(p) {
				t.Errorf("package %q", p)
			}
		}
	})
}
