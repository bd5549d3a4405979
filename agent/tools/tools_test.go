package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testsession"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// A bench has tools on host processes.
type bench struct {
	*tools.Kit
	t        *testing.T
	provider atoll.Provider
	caller   tools.Caller
}

func newBench(t *testing.T, opts tools.Options) *bench {
	t.Helper()
	return newBenchOn(t, testsession.Open(t), opts)
}

func newBenchOn(t *testing.T, p atoll.Provider, opts tools.Options) *bench {
	t.Helper()
	if opts.URL == nil {
		opts.URL = func(_ context.Context, sb atoll.Sandbox, port int) (string, error) {
			return fmt.Sprintf("http://%s.example/%d", sb.ID()[:4], port), nil
		}
	}
	k, err := tools.New(p, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return &bench{k, t, p, tools.Caller{ExecutionContext: session.ExecutionContext{WorkflowRunID: "wf_abc123", AgentRunID: "run_1"}}}
}

// A reply is the output of a tool, or its error.
type reply struct {
	t   *testing.T
	out map[string]any
	err error
}

// call calls a tool with any input that has a JSON form.
func (b *bench) call(name string, input any) reply {
	b.t.Helper()
	in, ok := input.(string)
	if !ok {
		data, err := json.Marshal(input)
		if err != nil {
			b.t.Fatal(err)
		}
		in = string(data)
	}
	data, err := b.Call(b.t.Context(), b.caller, name, []byte(in), nil)
	r := reply{b.t, nil, err}
	if err == nil {
		if err := json.Unmarshal(data, &r.out); err != nil {
			b.t.Fatalf("%s gave %s: %v", name, data, err)
		}
		b.checkSchema(name, r.out)
	}
	return r
}

// checkSchema validates the output of a tool.
func (b *bench) checkSchema(name string, out map[string]any) {
	b.t.Helper()
	for _, x := range b.Tools() {
		if x.Name != name {
			continue
		}
		s, err := x.Output.CloneSchemas().Resolve(nil)
		if err == nil {
			err = s.Validate(out)
		}
		if err != nil {
			b.t.Errorf("%s gives %v, which does not fit its schema: %v", name, out, err)
		}
	}
}

// wantFields checks fields: name, value, and so on.
func (r reply) wantFields(fields ...any) reply {
	r.t.Helper()
	if r.err != nil {
		r.t.Errorf("error: %v", r.err)
		return r
	}
	for i := 0; i < len(fields); i += 2 {
		if got, want := fmt.Sprint(r.out[fields[i].(string)]), fmt.Sprint(fields[i+1]); got != want {
			r.t.Errorf("%s = %q, want %q; all is %v", fields[i], got, want, r.out)
		}
	}
	return r
}

// wantError checks the kind of an error, and words in it.
func (r reply) wantError(kind atoll.Kind, words ...string) {
	r.t.Helper()
	if atoll.KindOf(r.err) != kind {
		r.t.Errorf("error %v (%v), want %q", r.err, r.out, kind)
		return
	}
	for _, w := range words {
		if !strings.Contains(r.err.Error(), w) {
			r.t.Errorf("error %q does not say %q", r.err, w)
		}
	}
}

type m map[string]any

// Every tool's input and output in the specification's examples.
func TestCodeMode(t *testing.T) {
	b := newBench(t, tools.Options{})
	work := b.call("sandbox_open", m{}).wantFields("session_id", "workflow_wf_abc123_sandbox", "status", "ready").out["workdir"].(string)
	b.call("sandbox_fs_write", m{"path": "hello.py", "content": "print('Hello, World!')", "encoding": "text"}).wantFields("path", work+"/hello.py", "size_bytes", 22)
	b.call("sandbox_fs_read", m{"path": "hello.py"}).wantFields("path", work+"/hello.py", "content", "print('Hello, World!')", "size_bytes", 22, "encoding", "text")
	b.call("sandbox_exec", m{"command": "cat hello.py; echo oops >&2; exit 3", "timeout_seconds": 60}).
		wantFields("exit_code", 3, "stdout", "print('Hello, World!')", "stderr", "oops\n", "truncated", nil, "note", nil)
	b.call("sandbox_exec", m{"command": "mkdir data && cd data && basename $PWD"}).wantFields("exit_code", 0, "stdout", "data\n")
	b.call("sandbox_exec", m{"command": "basename $PWD; echo $COLOUR", "workdir": "data", "env": m{"COLOUR": "blue"}}).wantFields("stdout", "data\nblue\n")
	if r := b.call("sandbox_exec", m{"command": "true", "workdir": "none"}).wantFields("exit_code", 126, "stdout", ""); !strings.Contains(fmt.Sprint(r.out["stderr"]), "none") {
		t.Errorf("a command that cannot be started gives %v", r.out)
	}
	entries := b.call("sandbox_fs_list", m{"path": ".", "recursive": false}).out["entries"]
	if got, want := fmt.Sprint(entries), "[map[mode:0755 name:data type:directory] map[mode:0644 name:hello.py size_bytes:22 type:file]]"; got != want {
		t.Errorf("entries = %s, want %s", got, want)
	}
	b.call("sandbox_fs_delete", m{"path": "hello.py", "recursive": false}).wantFields("deleted", true, "path", work+"/hello.py")
	b.call("sandbox_close", m{}).wantFields("closed", true, "session_id", "workflow_wf_abc123_sandbox")
	b.call("sandbox_close", "").wantFields("closed", false)
	b.call("sandbox_fs_list", m{}).wantFields("entries", "[]")
}

// Agents of one workflow share a sandbox; an agent with a session of its own doesn't.
func TestSharing(t *testing.T) {
	b := newBench(t, tools.Options{})
	b.call("sandbox_fs_write", m{"path": "f", "content": "x"}).wantFields()
	b.caller.AgentRunID = "run_2"
	b.call("sandbox_fs_read", m{"path": "f"}).wantFields("content", "x")
	own := newBenchOn(t, b.provider, tools.Options{Agent: &frontmatter.Sandbox{Mode: frontmatter.ModeCode, Session: frontmatter.SessionAgent, Limits: frontmatter.DefaultLimits()}})
	own.call("sandbox_open", m{}).wantFields("session_id", "agent_run_1_sandbox")
	own.call("sandbox_fs_read", m{"path": "f"}).wantError(atoll.ErrNotExist, "sandbox_fs_list")
	own.caller = tools.Caller{Scope: session.Scope{Kind: session.ScopeConversation, ID: "c1"}}
	own.call("sandbox_open", m{}).wantFields("session_id", "conversation_c1_sandbox")
	own.caller = tools.Caller{}
	own.call("sandbox_open", m{}).wantError(atoll.ErrInvalid, "neither a workflow run nor an agent run")
	closed, err := session.EndScope(t.Context(), b.provider, "", session.Scope{Kind: session.ScopeWorkflow, ID: "wf_abc123"})
	if err != nil || len(closed) != 2 {
		t.Errorf("EndScope closes %q, %v; want the workflow's and its agent's", closed, err)
	}
}

// A sandbox that vanished or stopped between calls is opened again, with a note.
func TestSandboxThatIsLost(t *testing.T) {
	b := newBench(t, tools.Options{})
	id := b.call("sandbox_open", m{}).out["sandbox_id"].(string)
	b.call("sandbox_fs_write", m{"path": "f", "content": "x"}).wantFields()
	sb, err := b.provider.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	r := b.call("sandbox_exec", m{"command": "cat f"}).wantFields("exit_code", 0, "stdout", "x")
	if note := fmt.Sprint(r.out["note"]); !strings.Contains(note, "started again") {
		t.Errorf("the note is %q", note)
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Fatal(err)
	}
	r = b.call("sandbox_fs_list", m{}).wantFields("entries", "[]")
	if note := fmt.Sprint(r.out["note"]); !strings.Contains(note, "gone") {
		t.Errorf("the note is %q", note)
	}
	b.call("sandbox_process_read", m{"process_id": "none"}).wantError(atoll.ErrNotExist, "background")
}

// The next call of each user of a vanished sandbox reports that, whatever it does.
func TestLostIsToldToAll(t *testing.T) {
	a := newBench(t, tools.Options{})
	b := newBenchOn(t, a.provider, tools.Options{})
	remove := func(id any) {
		sb, err := a.provider.Get(t.Context(), id.(string))
		if err == nil {
			err = sb.Remove(t.Context(), atoll.RemoveVolumes())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	id := a.call("sandbox_open", m{}).out["sandbox_id"]
	a.call("sandbox_fs_write", m{"path": "f", "content": "x"}).wantFields()
	b.call("sandbox_fs_read", m{"path": "f"}).wantFields("content", "x")
	remove(id)
	a.call("sandbox_fs_read", m{"path": "f"}).wantError(atoll.ErrNotExist, "The sandbox was gone", "without the files", "sandbox_fs_list")
	r := b.call("sandbox_exec", m{"command": "sleep 5", "timeout_seconds": 1})
	if note := fmt.Sprint(r.out["note"]); !strings.HasPrefix(note, "The sandbox was replaced") || !strings.Contains(note, ". The time limit") {
		t.Errorf("the note is %q", note)
	}
	id = b.call("sandbox_open", m{}).wantFields("note", nil).out["sandbox_id"]
	remove(id)
	if all, err := session.List(t.Context(), a.provider, ""); err != nil || len(all) > 0 { // Sessions notices first, and reports nothing
		t.Fatal(all, err)
	}
	r = b.call("sandbox_open", m{})
	if note := fmt.Sprint(r.out["note"]); !strings.Contains(note, "gone") {
		t.Errorf("the note is %q", note)
	}
}

// A dyingProvider's sandboxes stop while their next command runs, without its exit.
type dyingProvider struct {
	atoll.ProviderLayer
	next atomic.Bool
}

func (p *dyingProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := p.Provider.Get(ctx, id)
	return dyingSandbox{atoll.SandboxLayer{Sandbox: sb}, p}, err
}

type dyingSandbox struct {
	atoll.SandboxLayer
	p *dyingProvider
}

func (s dyingSandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	p, err := s.SandboxLayer.Exec(ctx, cmd)
	if err != nil || !s.p.next.Swap(false) {
		return p, err
	}
	return dyingProcess{atoll.ProcessLayer{Process: p}, s}, nil
}

type dyingProcess struct {
	atoll.ProcessLayer
	s dyingSandbox
}

func (p dyingProcess) Wait(ctx context.Context) (atoll.Exit, error) {
	_, err := p.ProcessLayer.Wait(ctx)
	if err == nil {
		err = p.s.Stop(ctx, 0)
	}
	if err == nil {
		err = atoll.E("wait", p.ID(), atoll.ErrStopped, nil)
	}
	return atoll.Exit{}, err
}

// A command whose sandbox ends isn't run again.
func TestSandboxThatEndsMeanwhile(t *testing.T) {
	p := &dyingProvider{ProviderLayer: atoll.ProviderLayer{Provider: newBench(t, tools.Options{}).provider}}
	b := newBenchOn(t, p, tools.Options{})
	b.call("sandbox_open", m{}).wantFields()
	p.next.Store(true)
	b.call("sandbox_exec", m{"command": "echo ran >> f"}).wantError(atoll.ErrConflict, "run it again")
	b.call("sandbox_exec", m{"command": "cat f"}).wantFields("stdout", "ran\n")
}

func TestTimeout(t *testing.T) {
	limits := frontmatter.DefaultLimits()
	limits.Timeout = max(5*time.Second, testenv.Scale(2*time.Second)).Round(time.Second) // in which the command has begun
	b := newBench(t, tools.Options{Agent: &frontmatter.Sandbox{Mode: frontmatter.ModeCode, Session: frontmatter.SessionWorkflow, Limits: limits}})
	b.call("sandbox_exec", m{"command": "echo begun > f; (while sleep 0.1; do echo late >> f; done) & sleep 1000", "timeout_seconds": 600}).
		wantFields("exit_code", 124, "timed_out", true, "note", fmt.Sprintf("The time limit of %s was reached, and the command was killed. Run longer commands in the background.", limits.Timeout))
	// Nothing that the command has started writes any more.
	b.call("sandbox_exec", m{"command": "sleep 0.3; cat f > then; sleep 0.5; cmp then f && head -n 1 f"}).wantFields("exit_code", 0, "stdout", "begun\n")
	for _, seconds := range []any{-1, 86401, 1.5, "ten"} {
		b.call("sandbox_exec", m{"command": "true", "timeout_seconds": seconds}).wantError(atoll.ErrInvalid, "timeout_seconds")
	}
}

func TestInput(t *testing.T) {
	b := newBench(t, tools.Options{})
	for _, tt := range []struct {
		tool, input string
		words       []string
	}{
		{"sandbox_exec", `{"cmd": "true"}`, []string{`no input "cmd"`, "command, timeout_seconds"}},
		{"sandbox_exec", `{}`, []string{`"command" is missing`}},
		{"sandbox_exec", `{"command": null}`, []string{`"command" is missing`}},
		{"sandbox_exec", `{"command": " "}`, []string{"empty"}},
		{"sandbox_exec", `{"command": 7}`, []string{"command", "number"}},
		{"sandbox_exec", `[]`, []string{"JSON object"}},
		{"sandbox_exec", `{"command": "x"} {}`, []string{"JSON object"}},
		{"sandbox_fs_write", `{"path": "f", "content": "%", "encoding": "base64"}`, []string{"base64"}},
		{"sandbox_fs_write", `{"path": "f", "content": "", "encoding": "hex"}`, []string{"text or base64"}},
		{"sandbox_fs_write", `{"path": "f", "content": "", "mode": "rwx"}`, []string{"octal"}},
		{"sandbox_fs_write", `{"path": "", "content": ""}`, []string{"empty"}},
		{"sandbox_fs_edit", `{"path": "f", "old_text": "", "new_text": ""}`, []string{"empty"}},
		{"sandbox_fs_search", `{}`, []string{"set what to look for"}},
		{"sandbox_fs_search", `{"content": "("}`, []string{"regular expression"}},
		{"sandbox_fs_search", `{"name": "["}`, []string{"pattern"}},
		{"sandbox_port", `{"port": 0}`, []string{"65535"}},
		{"sandbox_process_kill", `{"process_id": "x", "signal": "BOOM"}`, []string{"TERM, KILL"}},
		{"sandbox_open", `{"image": "Not An Image"}`, []string{"Not An Image"}},
		{"sandbox_run", `{"runtime": "python", "code": "", "timeout_seconds": 3601}`, []string{"3600"}},
		{"sandbox_run", `{"runtime": "bash", "code": "", "files": {"../x": ""}}`, []string{"work directory"}},
	} {
		b.call(tt.tool, tt.input).wantError(atoll.ErrInvalid, tt.words...)
	}
	b.call("sandbox_fly", m{}).wantError(atoll.ErrNotExist, "sandbox_exec")
}

func TestFiles(t *testing.T) {
	limits := frontmatter.DefaultLimits()
	limits.MaxFileSize, limits.MaxFiles = 100, 3
	b := newBench(t, tools.Options{Agent: &frontmatter.Sandbox{Mode: frontmatter.ModeCode, Session: frontmatter.SessionWorkflow, Limits: limits}})
	b.call("sandbox_fs_write", m{"path": "a/b/c", "content": "AAH/", "encoding": "base64", "mode": "0755"}).wantFields("size_bytes", 3)
	b.call("sandbox_fs_read", m{"path": "a/b/c"}).wantFields("content", "AAH/", "encoding", "base64", "size_bytes", 3)
	b.call("sandbox_exec", m{"command": "stat -c %a a/b/c"}).wantFields("stdout", "755\n")
	b.call("sandbox_fs_write", m{"path": "large", "content": strings.Repeat("x", 101)}).wantError(atoll.ErrInvalid, "100")
	b.call("sandbox_fs_write", m{"path": "full", "content": strings.Repeat("ä", 50)}).wantFields("size_bytes", 100)
	b.call("sandbox_fs_read", m{"path": "full", "max_bytes": 5}).wantFields("content", "ää", "truncated", true, "next_offset", 4, "size_bytes", 100)
	b.call("sandbox_fs_read", m{"path": "full", "offset": 98}).wantFields("content", "ä", "truncated", nil)
	b.call("sandbox_fs_write", m{"path": "full", "content": "again"}).wantFields("size_bytes", 5)
	b.call("sandbox_fs_write", m{"path": "third", "content": ""}).wantFields("size_bytes", 0)
	b.call("sandbox_fs_write", m{"path": "fourth", "content": ""}).wantError(atoll.ErrExhausted, "3 files", "sandbox_fs_delete")
	b.call("sandbox_exec", m{"command": "touch 1 2 3 4 5 6"}).wantFields("exit_code", 0)
	b.call("sandbox_fs_delete", m{"path": "a"}).wantError(atoll.ErrInvalid, "recursive")
	b.call("sandbox_fs_delete", m{"path": "a", "recursive": true}).wantFields("deleted", true)
	b.call("sandbox_fs_write", m{"path": "fourth", "content": ""}).wantFields("size_bytes", 0)
	r := b.call("sandbox_fs_delete", m{"path": ".", "recursive": true})
	r.wantError(atoll.ErrDenied, "one by one")
	if strings.Contains(r.err.Error(), "leads out") {
		t.Errorf("the work directory: %v", r.err)
	}
	b.call("sandbox_fs_delete", m{"path": "none"}).wantError(atoll.ErrNotExist)
	b.call("sandbox_fs_read", m{"path": "."}).wantError(atoll.ErrInvalid)
	b.call("sandbox_exec", m{"command": "ln -s full link"}).wantFields("exit_code", 0)
	r = b.call("sandbox_fs_list", m{"recursive": true})
	if got := fmt.Sprint(r.out["entries"]); !strings.Contains(got, "name:link target:full type:symlink") {
		t.Errorf("entries = %s", got)
	}
}

// The file tools stay below the work directory, whatever the path and its links.
func TestEscapes(t *testing.T) {
	b := newBench(t, tools.Options{})
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "file"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.call("sandbox_exec", m{"command": `echo x > f; ln -s f in; ln -s "$OUT/file" out; ln -s "$OUT" dir; ln -s "$OUT/new" dangling; ln -s dir chain`, "env": m{"OUT": outside}}).wantFields("exit_code", 0)
	b.call("sandbox_fs_read", m{"path": "in"}).wantFields("content", "x\n")
	for _, path := range []string{"out", "dir/file", "chain/file", "../../../../../../../../etc/hostname", "/etc/hostname", outside + "/file"} {
		b.call("sandbox_fs_read", m{"path": path}).wantError(atoll.ErrDenied)
		b.call("sandbox_fs_edit", m{"path": path, "old_text": "secret", "new_text": "x"}).wantError(atoll.ErrDenied)
	}
	for _, path := range []string{"out", "dangling", "dir/new", "chain/new", outside + "/new", "../new"} {
		b.call("sandbox_fs_write", m{"path": path, "content": "x"}).wantError(atoll.ErrDenied)
	}
	for _, path := range []string{"dir", "chain", "..", "/", outside} {
		b.call("sandbox_fs_list", m{"path": path}).wantError(atoll.ErrDenied)
		b.call("sandbox_fs_search", m{"path": path, "name": "*"}).wantError(atoll.ErrDenied)
	}
	b.call("sandbox_fs_delete", m{"path": "dir/file"}).wantError(atoll.ErrDenied)
	for _, path := range []string{"/etc/passwd", "/root", "/root/.ssh/id", "/etc/../etc/passwd"} {
		b.call("sandbox_fs_read", m{"path": path}).wantError(atoll.ErrDenied, "blocked")
	}
	if r := b.call("sandbox_fs_search", m{"content": "secret"}); fmt.Sprint(r.out["matches"]) != "[]" {
		t.Errorf("a search follows links: %v, %v", r.out, r.err)
	}
	b.call("sandbox_fs_delete", m{"path": "dir"}).wantFields("deleted", true) // the link itself
	if data, err := os.ReadFile(filepath.Join(outside, "file")); string(data) != "secret" {
		t.Errorf("outside: %q, %v", data, err)
	}
	if entries, err := os.ReadDir(outside); len(entries) != 1 {
		t.Errorf("outside: %v, %v", entries, err)
	}
	_, err := tools.New(b.provider, tools.Options{Roots: []string{"/"}})
	if atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "blocked") {
		t.Errorf("a root with what is blocked: %v", err)
	}
}

func TestEdit(t *testing.T) {
	b := newBench(t, tools.Options{})
	b.call("sandbox_fs_write", m{"path": "f", "content": "one\ntwo\ntwo\n", "mode": "0700"}).wantFields()
	b.call("sandbox_fs_edit", m{"path": "f", "old_text": "three", "new_text": "x"}).wantError(atoll.ErrInvalid, "read the file")
	b.call("sandbox_fs_edit", m{"path": "f", "old_text": "two", "new_text": "x"}).wantError(atoll.ErrInvalid, "2 times", "replace_all")
	b.call("sandbox_fs_edit", m{"path": "f", "old_text": "one\n", "new_text": ""}).wantFields("replacements", 1)
	b.call("sandbox_fs_edit", m{"path": "f", "old_text": "two", "new_text": "2", "replace_all": true}).wantFields("replacements", 2, "size_bytes", 4)
	b.call("sandbox_exec", m{"command": "stat -c %a f; cat f"}).wantFields("stdout", "700\n2\n2\n")
	b.call("sandbox_fs_edit", m{"path": "none", "old_text": "x", "new_text": ""}).wantError(atoll.ErrNotExist)
}

func TestSearch(t *testing.T) {
	b := newBench(t, tools.Options{})
	for name, content := range map[string]string{
		"src/main.go": "package main\n\nfunc Main() {}\n", "src/deep/er.go": "package er // Main\n", "README.md": "main\nMAIN", ".git/HEAD": "main\n", "bin": "main\x00main",
	} {
		b.call("sandbox_fs_write", m{"path": name, "content": content}).wantFields()
	}
	work := b.call("sandbox_open", m{}).out["workdir"].(string)
	for _, tt := range []struct {
		in   m
		want []string
	}{
		{m{"name": "*.go"}, []string{"src/deep/er.go", "src/main.go"}},
		{m{"name": "src/*.go"}, []string{"src/main.go"}},
		{m{"content": "^main"}, []string{"README.md:1:main"}},
		{m{"content": "^main", "ignore_case": true}, []string{"README.md:1:main", "README.md:2:MAIN"}},
		{m{"content": "Main", "name": "*.go"}, []string{"src/deep/er.go:1:package er // Main", "src/main.go:3:func Main() {}"}},
		{m{"content": "Main", "path": "src/main.go"}, []string{"src/main.go:3:func Main() {}"}},
		{m{"name": "none"}, nil},
	} {
		r := b.call("sandbox_fs_search", tt.in)
		if r.err != nil {
			t.Errorf("%v: %v", tt.in, r.err)
			continue
		}
		var got []string
		for _, x := range r.out["matches"].([]any) {
			hit := x.(map[string]any)
			text := strings.TrimPrefix(hit["path"].(string), work+"/")
			if hit["line"] != nil {
				text += fmt.Sprintf(":%v:%v", hit["line"], hit["text"])
			}
			got = append(got, text)
		}
		if fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%v finds %q, want %q", tt.in, got, tt.want)
		}
	}
	b.call("sandbox_fs_search", m{"name": "*", "max_results": 2}).wantFields("truncated", true)
	b.call("sandbox_fs_search", m{"name": "*", "path": "none"}).wantError(atoll.ErrNotExist)
}

func TestBackground(t *testing.T) {
	b := newBench(t, tools.Options{})
	id := b.call("sandbox_exec", m{"command": `echo begun; while read line; do echo "got $line"; done; echo end >&2; exit 4`, "background": true}).wantFields("exit_code", nil).out["process_id"]
	wait := func(words string) (offset any) {
		t.Helper()
		for deadline := time.Now().Add(testenv.Scale(20 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
			r := b.call("sandbox_process_read", m{"process_id": id}).wantFields("running", true)
			if r.out["stdout"] == words {
				return r.out["stdout_offset"]
			}
			if time.Now().After(deadline) {
				t.Fatalf("it printed %q, want %q", r.out["stdout"], words)
			}
		}
	}
	wait("begun\n")
	b.call("sandbox_process_write", m{"process_id": id, "input": "a\n"}).wantFields("written", 2)
	offset := wait("begun\ngot a\n")
	b.call("sandbox_process_wait", m{"process_id": id, "timeout_seconds": 1, "stdout_offset": offset}).wantFields("running", true, "stdout", "")
	b.call("sandbox_process_write", m{"process_id": id, "input": "b\n", "close": true}).wantFields("written", 2)
	b.call("sandbox_process_wait", m{"process_id": id, "stdout_offset": offset}).wantFields("running", false, "exit_code", 4, "stdout", "got b\n", "stderr", "end\n")
	b.call("sandbox_process_write", m{"process_id": id, "input": "c"}).wantError(atoll.ErrConflict, "ended with code 4")
	b.call("sandbox_process_kill", m{"process_id": id}).wantError(atoll.ErrConflict, "ended already")
	b.call("sandbox_process_read", m{"process_id": "none"}).wantError(atoll.ErrNotExist, fmt.Sprint(id))

	id = b.call("sandbox_exec", m{"command": "sleep 1000", "background": true}).out["process_id"]
	b.call("sandbox_process_kill", m{"process_id": id, "signal": "KILL"}).wantFields("signal", "SIGKILL")
	b.call("sandbox_process_wait", m{"process_id": id}).wantFields("running", false, "exit_code", 137)
	id = b.call("sandbox_exec", m{"command": "sleep 1000", "background": true, "timeout_seconds": 1}).out["process_id"]
	b.call("sandbox_process_wait", m{"process_id": id}).wantFields("exit_code", 124, "timed_out", true)
}

func TestCancel(t *testing.T) {
	b := newBench(t, tools.Options{})
	b.call("sandbox_open", m{}).wantFields()
	ctx, cancel := context.WithCancel(t.Context())
	reports := make(chan tools.Report, 100)
	_, err := b.Call(ctx, b.caller, "sandbox_exec", []byte(`{"command": "echo $$ > pid; echo working; sleep 1000"}`), func(r tools.Report) {
		if r.Message == "" {
			return // the command has not begun yet
		}
		reports <- r
		cancel()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the call: %v", err)
	}
	if r := <-reports; r.Message != "working" || r.Seconds < 0.5 {
		t.Errorf("the report is %+v", r)
	}
	b.call("sandbox_exec", m{"command": "kill -0 $(cat pid)"}).wantFields("exit_code", 1)
}

func TestPort(t *testing.T) {
	b := newBench(t, tools.Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	r := b.call("sandbox_port", m{"port": port}).wantFields("note", nil)
	if url := fmt.Sprint(r.out["url"]); !strings.HasSuffix(url, fmt.Sprintf(".example/%d", port)) {
		t.Errorf("the url is %q", url)
	}
	l.Close()
	if r := b.call("sandbox_port", m{"port": port}); !strings.Contains(fmt.Sprint(r.out["note"]), "Nothing listens") {
		t.Errorf("of a port where nobody listens: %v, %v", r.out, r.err)
	}
}

func TestRun(t *testing.T) {
	b := newBench(t, tools.Options{MaxOutput: 1000, Images: frontmatter.Images{Shortcuts: map[string]string{"python": "host", "linux": "host"}}})
	r := b.call("sandbox_run", m{
		"runtime": "bash", "code": `echo "$1 $COLOUR"; cat data/in; echo out > made; echo changed >> data/in; printf '\377' > bytes; exit 5`,
		"args": []string{"a b"}, "env": m{"COLOUR": "blue"}, "files": m{"data/in": "in\n", "same": "same"},
	}).wantFields("ok", false, "runtime", "bash", "exit_code", 5, "stdout", "a b blue\nin\n", "error", "exited with code 5", "limits", "map[max_stdout_bytes:1000 timeout_seconds:120]")
	want := "[map[content:/w== encoding:base64 path:bytes size_bytes:1] map[content:in\nchanged\n encoding:text path:data/in size_bytes:11] map[content:out\n encoding:text path:made size_bytes:4]]"
	if got := fmt.Sprint(r.out["artifacts"]); got != want {
		t.Errorf("artifacts = %s, want %s", got, want)
	}
	b.call("sandbox_run", m{"runtime": "python", "code": "import sys; print(sys.argv[1:], open('main.py').read()[:6])", "args": []string{"x"}}).
		wantFields("ok", true, "exit_code", 0, "stdout", "['x'] import\n", "artifacts", nil, "error", nil)
	b.call("sandbox_run", m{"runtime": "ruby", "code": "x"}).wantFields("ok", false, "exit_code", -1, "error", `runtime "ruby" is not in allowed list: use python, node or bash`)
	b.call("sandbox_run", m{"runtime": "bash", "code": "sleep 1000", "timeout_seconds": 1}).wantFields("ok", false, "exit_code", 124, "timed_out", true)
	if all, err := b.provider.List(t.Context(), atoll.Filter{}); err != nil || len(all) > 0 {
		t.Errorf("sandboxes are left: %+v, %v", all, err)
	}
}

// The machine's own programs take precedence over images of a registry, unless the
// configuration sets an image.
func TestRunOwnPrograms(t *testing.T) {
	images := frontmatter.Images{Shortcuts: map[string]string{"": "host"}}
	own := newBench(t, tools.Options{OwnPrograms: true, Images: images})
	own.call("sandbox_run", m{"runtime": "bash", "code": "echo mine"}).wantFields("ok", true, "stdout", "mine\n")
	if r := newBench(t, tools.Options{Images: images}).call("sandbox_run", m{"runtime": "bash", "code": "echo mine"}); r.err == nil {
		t.Errorf("without them it ran: %v", r.out)
	}
	images.Shortcuts["bash"] = "debian:12"
	if r := newBench(t, tools.Options{OwnPrograms: true, Images: images}).call("sandbox_run", m{"runtime": "bash", "code": "echo mine"}); r.err == nil {
		t.Errorf("it ran in another image than the one that is set: %v", r.out)
	}
	delete(images.Shortcuts, "bash")
	none := newBench(t, tools.Options{OwnPrograms: true, Images: images, Sandbox: atoll.Spec{Env: []string{"PATH=/nowhere"}}})
	none.call("sandbox_run", m{"runtime": "python", "code": "1"}).wantFields("ok", false, "exit_code", -1, "error", "the image has no python3: use another runtime, or ask for an image for this one")
	if all, err := none.provider.List(t.Context(), atoll.Filter{}); err != nil || len(all) > 0 {
		t.Errorf("sandboxes are left: %+v, %v", all, err)
	}
}

func TestOffers(t *testing.T) {
	names := func(b *bench) string {
		var list []string
		for _, x := range b.Tools() {
			list = append(list, x.Name)
			if x.Description == "" || x.Title == "" || x.Input == nil || x.Output == nil {
				t.Errorf("%s is not complete", x.Name)
			}
		}
		return strings.Join(list, " ")
	}
	const code = "sandbox_open sandbox_close sandbox_exec sandbox_process_read sandbox_process_wait sandbox_process_write sandbox_process_kill " +
		"sandbox_fs_write sandbox_fs_read sandbox_fs_list sandbox_fs_delete sandbox_fs_edit sandbox_fs_search sandbox_port"
	for mode, want := range map[frontmatter.Mode]string{"": code + " sandbox_run", frontmatter.ModeCode: code, frontmatter.ModeCompute: "sandbox_run"} {
		opts := tools.Options{}
		if mode != "" {
			opts.Agent = &frontmatter.Sandbox{Mode: mode, Limits: frontmatter.DefaultLimits()}
		}
		if got := names(newBench(t, opts)); got != want {
			t.Errorf("mode %q has %s, want %s", mode, got, want)
		}
	}
}

var update = flag.Bool("update", false, "write testdata/tools.json")

// Clients depend on the schemas, so they only change on purpose.
func TestSchemas(t *testing.T) {
	type shown struct {
		Name, Description string
		Input, Output     any
	}
	var all []shown
	for _, x := range newBench(t, tools.Options{}).Tools() {
		all = append(all, shown{x.Name, x.Description, x.Input, x.Output})
	}
	got, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "tools.json")
	if *update {
		if err := os.WriteFile(path, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got)+"\n" != string(want) {
		t.Errorf("the tools are not those of %s: make golden writes it anew", path)
	}
}
