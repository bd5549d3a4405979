package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testsession"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/server/mcp"
)

func newServer(t *testing.T, p atoll.Provider, o tools.Options, opts mcp.Options) *mcp.Server {
	t.Helper()
	if o.URL == nil {
		o.URL = func(_ context.Context, _ atoll.Sandbox, port int) (string, error) {
			return fmt.Sprintf("http://127.0.0.1:%d", port), nil
		}
	}
	if o.Images.Shortcuts == nil {
		o.Images.Shortcuts = map[string]string{"linux": "host", "python": "host", "": "host"}
	}
	kit, err := tools.New(p, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := mcp.NewServer(kit, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), kit.Close()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// A client is the client of one MCP session.
type client struct {
	*sdk.ClientSession
	t        *testing.T
	toServer io.Closer
	run      chan error // the server's result, if it is served over streams
}

// dialStreams connects a client to s over streams.
func dialStreams(t *testing.T, s *mcp.Server, opts *sdk.ClientOptions) *client {
	t.Helper()
	return dialAs(t, s, "test", opts)
}

// dialAs is dialStreams for a client of another name.
func dialAs(t *testing.T, s *mcp.Server, name string, opts *sdk.ClientOptions) *client {
	t.Helper()
	fromClient, toServer := io.Pipe()
	fromServer, toClient := io.Pipe()
	c := &client{t: t, toServer: toServer, run: make(chan error, 1)}
	go func() { c.run <- s.Run(context.WithoutCancel(t.Context()), fromClient, toClient) }()
	var err error
	c.ClientSession, err = sdk.NewClient(&sdk.Implementation{Name: name}, opts).
		Connect(t.Context(), &sdk.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.ClientSession.Close() })
	return c
}

// hangUp ends the session, and waits until the server has noticed.
func (c *client) hangUp() {
	c.t.Helper()
	if err := c.ClientSession.Close(); err != nil {
		c.t.Error(err)
	}
	if err := <-c.run; err != nil {
		c.t.Errorf("Run: %v", err)
	}
}

type m map[string]any

// call calls a tool that succeeds, and returns its output.
func (c *client) call(name string, input m) map[string]any {
	c.t.Helper()
	r, err := c.CallTool(c.t.Context(), &sdk.CallToolParams{Name: name, Arguments: input})
	if err != nil {
		c.t.Fatalf("%s: %v", name, err)
	}
	if r.IsError {
		c.t.Fatalf("%s: %s", name, textOf(r))
	}
	out, ok := r.StructuredContent.(map[string]any)
	if !ok || strings.HasPrefix(textOf(r), "{") {
		c.t.Errorf("%s: the structured output is %v, the text %s", name, r.StructuredContent, textOf(r))
	}
	return out
}

func textOf(r *sdk.CallToolResult) string {
	if len(r.Content) != 1 {
		return fmt.Sprintf("%d contents", len(r.Content))
	}
	return r.Content[0].(*sdk.TextContent).Text
}

func (c *client) wantFields(name string, input m, fields ...any) {
	c.t.Helper()
	out := c.call(name, input)
	for i := 0; i < len(fields); i += 2 {
		if got, want := fmt.Sprint(out[fields[i].(string)]), fmt.Sprint(fields[i+1]); got != want {
			c.t.Errorf("%s: %s = %q, want %q; all is %v", name, fields[i], got, want, out)
		}
	}
}

func listSessions(t *testing.T, p atoll.Provider) []string {
	t.Helper()
	all, err := session.List(t.Context(), p, "")
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{}
	for _, s := range all {
		keys = append(keys, s.Key)
	}
	slices.Sort(keys)
	return keys
}

func TestToolsList(t *testing.T) {
	p := testsession.Open(t)
	names := func(agent *frontmatter.Sandbox) (list []string) {
		c := dialStreams(t, newServer(t, p, tools.Options{Agent: agent}, mcp.Options{Version: "1.2.3"}), nil)
		if got := c.InitializeResult(); got.ServerInfo.Name != "atoll" || got.ServerInfo.Version != "1.2.3" || !strings.Contains(got.Instructions, "sandbox") {
			t.Errorf("the server says %+v", got)
		}
		for x, err := range c.Tools(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, x.Name)
			a := x.Annotations
			if x.Title == "" || x.Description == "" || x.InputSchema == nil || x.OutputSchema == nil || a == nil || a.Title != x.Title || a.DestructiveHint == nil || a.OpenWorldHint == nil {
				t.Errorf("%s is not complete: %+v, %+v", x.Name, x, a)
			}
			if a.ReadOnlyHint && *a.DestructiveHint || *a.OpenWorldHint {
				t.Errorf("%s: hints %+v", x.Name, a)
			}
			if want := strings.HasPrefix(x.Name, "sandbox_fs_read"); want && !a.ReadOnlyHint {
				t.Errorf("%s changes something", x.Name)
			}
		}
		c.hangUp()
		return list
	}
	if got := names(nil); len(got) != 15 || !slices.Contains(got, "sandbox_run") || !slices.Contains(got, "sandbox_exec") || !slices.Contains(got, "sandbox_port") {
		t.Errorf("all tools are %q", got)
	}
	if got := names(&frontmatter.Sandbox{Mode: frontmatter.ModeCode, Limits: frontmatter.DefaultLimits()}); len(got) != 14 || slices.Contains(got, "sandbox_run") {
		t.Errorf("in code mode they are %q", got)
	}
	if got := names(&frontmatter.Sandbox{Mode: frontmatter.ModeCompute, Limits: frontmatter.DefaultLimits()}); fmt.Sprint(got) != "[sandbox_run]" {
		t.Errorf("in compute mode they are %q", got)
	}
}

func TestOpenWorld(t *testing.T) {
	c := dialStreams(t, newServer(t, testsession.Open(t), tools.Options{Sandbox: atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn}}}, mcp.Options{}), nil)
	for x, err := range c.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if want := x.Name == "sandbox_exec" || x.Name == "sandbox_run" || x.Name == "sandbox_process_write"; *x.Annotations.OpenWorldHint != want {
			t.Errorf("with a network, the openWorldHint of %s is %v", x.Name, !want)
		}
	}
}

// A client can call every tool.
func TestCalls(t *testing.T) {
	p := testsession.Open(t)
	c := dialStreams(t, newServer(t, p, tools.Options{}, mcp.Options{}), nil)
	work := c.call("sandbox_open", m{})["workdir"].(string)
	c.wantFields("sandbox_fs_write", m{"path": "hello.py", "content": "print('Hello, World!')"}, "path", work+"/hello.py", "size_bytes", 22)
	c.wantFields("sandbox_fs_read", m{"path": "hello.py"}, "content", "print('Hello, World!')")
	c.wantFields("sandbox_fs_edit", m{"path": "hello.py", "old_text": "World", "new_text": "Atoll"}, "replacements", 1)
	c.wantFields("sandbox_fs_list", m{}, "entries", "[map[mode:0644 name:hello.py size_bytes:22 type:file]]")
	c.wantFields("sandbox_fs_search", m{"content": "Atoll"}, "matches", "[map[line:1 path:"+work+"/hello.py text:print('Hello, Atoll!')]]")
	c.wantFields("sandbox_exec", m{"command": "cat hello.py; exit 3"}, "exit_code", 3, "stdout", "print('Hello, Atoll!')")
	id := c.call("sandbox_exec", m{"command": "read line; echo $line; read line", "background": true})["process_id"]
	c.wantFields("sandbox_process_write", m{"process_id": id, "input": "a\n"}, "written", 2)
	c.wantFields("sandbox_process_read", m{"process_id": id}, "running", true)
	c.wantFields("sandbox_process_kill", m{"process_id": id, "signal": "KILL"}, "signal", "SIGKILL")
	c.wantFields("sandbox_process_wait", m{"process_id": id}, "running", false, "exit_code", 137)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	c.wantFields("sandbox_port", m{"port": port}, "url", fmt.Sprintf("http://127.0.0.1:%d", port))
	c.wantFields("sandbox_run", m{"runtime": "bash", "code": "echo $((6*7))"}, "ok", true, "stdout", "42\n")
	c.wantFields("sandbox_fs_delete", m{"path": "hello.py"}, "deleted", true)
	c.wantFields("sandbox_close", m{}, "closed", true)
	c.hangUp()
	if left := listSessions(t, p); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// maxTokens is the most tokens, of 4 characters, that the list of tools may cost a model.
const maxTokens = 2500

// The list of tools is small enough for a model.
func TestTokens(t *testing.T) {
	c := dialStreams(t, newServer(t, testsession.Open(t), tools.Options{}, mcp.Options{}), nil)
	chars := 0
	for x, err := range c.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		input, err := json.Marshal(x.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		chars += len(x.Name) + len(x.Description) + len(input)
	}
	t.Logf("%d tokens", chars/4)
	if chars/4 > maxTokens {
		t.Errorf("the tools cost %d tokens, more than %d", chars/4, maxTokens)
	}
}

// The text of an answer is plain, and an image is one.
func TestTexts(t *testing.T) {
	c := dialStreams(t, newServer(t, testsession.Open(t), tools.Options{}, mcp.Options{}), nil)
	text := func(name string, input m) string {
		t.Helper()
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: input})
		if err != nil || r.IsError {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		return textOf(r)
	}
	if got := text("sandbox_open", nil); !strings.HasPrefix(got, "The sandbox is ready. Image: ") || !strings.Contains(got, "Network: ") {
		t.Errorf("sandbox_open: %s", got)
	}
	work := c.call("sandbox_open", m{})["workdir"].(string)
	for _, tt := range []struct {
		tool  string
		input m
		want  string
	}{
		{"sandbox_fs_write", m{"path": "d/hello.py", "content": "print('Hello')\n"}, "Wrote " + work + "/d/hello.py, 15 bytes."},
		{"sandbox_fs_read", m{"path": "d/hello.py"}, "print('Hello')"},
		{"sandbox_exec", m{"command": "cat d/*; echo 'a \"b\"'; printf oops >&2; exit 3"}, "print('Hello')\na \"b\"\nstderr:\noops\nexit code 3"},
		{"sandbox_exec", m{"command": "ln -s hello.py d/link"}, "exit code 0"},
		{"sandbox_fs_list", m{}, "0755           d/"},
		{"sandbox_fs_list", m{"path": "d"}, "0644        15 hello.py\n0777           link -> hello.py"},
		{"sandbox_fs_search", m{"content": "Hel"}, work + "/d/hello.py:1:print('Hello')"},
		{"sandbox_fs_search", m{"name": "none"}, "Nothing was found."},
		{"sandbox_fs_delete", m{"path": "d", "recursive": true}, "Deleted " + work + "/d."},
		{"sandbox_fs_list", m{}, work + " has no entries to list."},
		{"sandbox_run", m{"runtime": "bash", "code": "echo x; printf y > z; exit 2"}, "x\nexit code 2\nfile z, 1 bytes:\ny"},
		{"sandbox_close", m{}, "The sandbox is removed."},
		{"sandbox_close", m{}, "There was no sandbox."},
	} {
		if got := text(tt.tool, tt.input); got != tt.want {
			t.Errorf("%s %v:\n%s\nwant\n%s", tt.tool, tt.input, got, tt.want)
		}
	}
	c.call("sandbox_exec", m{"command": "echo iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg== | base64 -d > dot.png"})
	r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "sandbox_fs_read", Arguments: m{"path": "dot.png"}})
	if err != nil || len(r.Content) != 2 {
		t.Fatalf("an image: %+v, %v", r, err)
	}
	if x, ok := r.Content[1].(*sdk.ImageContent); !ok || x.MIMEType != "image/png" || len(x.Data) != 70 || !strings.Contains(r.Content[0].(*sdk.TextContent).Text, "1 x 1 pixels") {
		t.Errorf("an image: %+v, %+v", r.Content[0], r.Content[1])
	}
	id := c.call("sandbox_exec", m{"command": "echo begun; read line; echo $line", "background": true})["process_id"].(string)
	if got, want := text("sandbox_process_write", m{"process_id": id, "input": "a\n"}), "Sent 2 bytes to process "+id+"."; got != want {
		t.Errorf("sandbox_process_write: %s, want %s", got, want)
	}
	if got, want := text("sandbox_process_wait", m{"process_id": id}), "begun\na\nexit code 0"; got != want {
		t.Errorf("sandbox_process_wait: %s, want %s", got, want)
	}
	id = c.call("sandbox_exec", m{"command": "sleep 1000", "background": true})["process_id"].(string)
	if got, want := text("sandbox_process_read", m{"process_id": id}), "process "+id+" still runs\nread so far: stdout_offset 0, stderr_offset 0"; got != want {
		t.Errorf("sandbox_process_read: %s, want %s", got, want)
	}
	if got, want := text("sandbox_process_kill", m{"process_id": id}), "Sent SIGTERM to process "+id+"."; got != want {
		t.Errorf("sandbox_process_kill: %s, want %s", got, want)
	}
}

// Clients that would hide the text from the model get nothing else.
func TestTextAlone(t *testing.T) {
	s := newServer(t, testsession.Open(t), tools.Options{}, mcp.Options{})
	for name, structured := range map[string]bool{"claude-code": false, "Visual Studio Code": false, "other": true} {
		c := dialAs(t, s, name, nil)
		for x, err := range c.Tools(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			if (x.OutputSchema != nil) != structured {
				t.Errorf("%s: the schema of %s is %v", name, x.Name, x.OutputSchema)
			}
		}
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "sandbox_exec", Arguments: m{"command": "echo x"}})
		if err != nil || textOf(r) != "x\nexit code 0" || (r.StructuredContent != nil) != structured {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		c.hangUp()
	}
}

// Errors of tools are results for the model; only invalid calls are errors of the
// protocol.
func TestErrors(t *testing.T) {
	c := dialStreams(t, newServer(t, testsession.Open(t), tools.Options{}, mcp.Options{}), nil)
	for name, tt := range map[string]struct {
		input m
		words string
	}{
		"sandbox_exec":         {m{}, `sandbox_exec: the input "command" is missing`},
		"sandbox_fs_read":      {m{"path": "none"}, "none does not exist: use sandbox_fs_list to see existing files"},
		"sandbox_fs_write":     {m{"path": "/etc/passwd", "content": ""}, "/etc/passwd is blocked"},
		"sandbox_process_read": {m{"process_id": "none"}, "start one by sandbox_exec with background"},
	} {
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: tt.input})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !r.IsError || r.StructuredContent != nil || !strings.Contains(textOf(r), tt.words) {
			t.Errorf("%s gives %+v, %q; want an error with %q", name, r, textOf(r), tt.words)
		}
	}
	if r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "sandbox_fly"}); err == nil || !strings.Contains(err.Error(), "sandbox_fly") {
		t.Errorf("an unknown tool: %+v, %v", r, err)
	}
}

func TestProgress(t *testing.T) {
	told := make(chan *sdk.ProgressNotificationParams, 100)
	c := dialStreams(t, newServer(t, testsession.Open(t), tools.Options{}, mcp.Options{}), &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *sdk.ProgressNotificationClientRequest) { told <- req.Params },
	})
	params := &sdk.CallToolParams{Name: "sandbox_exec", Arguments: m{"command": "echo working; until [ -e enough ]; do sleep 0.1; done"}}
	c.wantFields("sandbox_exec", m{"command": "sleep 1.2"}) // without a progress token
	if len(told) > 0 {
		t.Error("a client without a token gets progress")
	}
	params.SetProgressToken("tok")
	ended := make(chan error, 1)
	go func() {
		_, err := c.CallTool(t.Context(), params)
		ended <- err
	}()
	last := 0.0
	for limit, working := time.After(testenv.Scale(time.Minute)), 0; working < 2; {
		select {
		case p := <-told:
			if p.Message == "working" {
				working++
			} else if p.Message != "" || working > 0 {
				t.Errorf("the message is %q", p.Message)
			}
			if p.ProgressToken != "tok" || p.Progress <= last {
				t.Errorf("told %+v after %v", p, last)
			}
			last = p.Progress
		case err := <-ended:
			t.Fatalf("the call ended with %v after %d reports", err, working)
		case <-limit:
			t.Fatalf("there were %d reports", working)
		}
	}
	c.call("sandbox_exec", m{"command": "touch enough"})
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// waitGone waits until a process has ended whose pid the command has written.
func (c *client) waitGone(pid string) {
	c.t.Helper()
	for deadline := time.Now().Add(testenv.Scale(20 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		if c.call("sandbox_exec", m{"command": "kill -0 " + pid})["exit_code"] != 0.0 {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("process %s still runs", pid)
		}
	}
}

// beginSleep calls a long command, and waits until it runs.
func (c *client) beginSleep(ctx context.Context) (pid string, ended chan error) {
	c.t.Helper()
	c.wantFields("sandbox_exec", m{"command": "mkfifo begun"}, "exit_code", 0)
	ended = make(chan error, 1)
	go func() {
		_, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "sandbox_exec", Arguments: m{"command": "echo $$ > begun; sleep 1000 & wait"}})
		ended <- err
	}()
	return strings.TrimSpace(c.call("sandbox_exec", m{"command": "cat begun; rm begun"})["stdout"].(string)), ended
}

func TestCancel(t *testing.T) {
	c := dialStreams(t, newServer(t, testsession.Open(t), tools.Options{}, mcp.Options{}), nil)
	ctx, cancel := context.WithCancel(t.Context())
	pid, ended := c.beginSleep(ctx)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the call: %v", err)
	}
	c.waitGone(pid)
}

// When a client goes, its processes end.
func TestClientGone(t *testing.T) {
	p := testsession.Open(t)
	s := newServer(t, p, tools.Options{}, mcp.Options{Caller: tools.Caller{ExecutionContext: session.ExecutionContext{WorkflowRunID: "wf1"}}})
	c := dialStreams(t, s, nil)
	pid, _ := c.beginSleep(t.Context())
	c.toServer.Close()
	if err := <-c.run; err != nil {
		t.Errorf("Run: %v", err)
	}
	other := dialStreams(t, s, nil)
	other.waitGone(pid)
}

// When ctx ends, so do calls in progress, and the session.
func TestRunEnds(t *testing.T) {
	p := testsession.Open(t)
	s := newServer(t, p, tools.Options{}, mcp.Options{})
	fromClient, toServer := io.Pipe()
	fromServer, toClient := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	run := make(chan error, 1)
	go func() { run <- s.Run(ctx, fromClient, toClient) }()
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(t.Context(), &sdk.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{ClientSession: session, t: t}
	_, ended := c.beginSleep(t.Context())
	cancel()
	if err := <-run; !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	<-ended
	session.Close()
	if left := listSessions(t, p); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestResources(t *testing.T) {
	p := testsession.Open(t)
	c := dialStreams(t, newServer(t, p, tools.Options{Agent: &frontmatter.Sandbox{
		Mode: frontmatter.ModeCode, Session: frontmatter.SessionWorkflow, Limits: frontmatter.Limits{Timeout: time.Minute, MaxFileSize: 1000, MaxFiles: 10},
	}}, mcp.Options{}), nil)
	list := func() (uris []string) {
		t.Helper()
		r, err := c.ListResources(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range r.Resources {
			uris = append(uris, x.URI)
		}
		return uris
	}
	if got := list(); len(got) > 0 || len(listSessions(t, p)) > 0 {
		t.Errorf("before a sandbox is open: %q, and there are %q", got, listSessions(t, p))
	}
	if _, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "sandbox:///work/f"}); err == nil || len(listSessions(t, p)) > 0 {
		t.Errorf("reading before a sandbox is open: %v, and there are %q", err, listSessions(t, p))
	}
	templates, err := c.ListResourceTemplates(t.Context(), nil)
	if err != nil || len(templates.ResourceTemplates) != 1 || templates.ResourceTemplates[0].URITemplate != "sandbox:///{+path}" {
		t.Errorf("templates: %+v, %v", templates, err)
	}
	c.wantFields("sandbox_exec", m{"command": `mkdir d; echo deep > d/f; echo text > 'a b%&?#ü.txt'; printf '\000\377' > bin; head -c 1001 /dev/zero > large; ln -s /etc/hostname out; touch "$(printf 'x\377')"`}, "exit_code", 0)
	work := c.call("sandbox_open", m{})["workdir"].(string)
	if got, want := fmt.Sprint(list()), fmt.Sprintf("[sandbox://%s/a%%20b%%25&%%3F%%23%%C3%%BC.txt sandbox://%[1]s/bin sandbox://%[1]s/large]", work); got != want {
		t.Errorf("resources %s, want %s", got, want)
	}
	read := func(uri string) (*sdk.ResourceContents, error) {
		r, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
		if err != nil {
			return nil, err
		}
		return r.Contents[0], nil
	}
	for _, uri := range list()[:2] {
		x, err := read(uri)
		if err != nil {
			t.Errorf("%s: %v", uri, err)
		} else if got := x.Text + string(x.Blob); got != "text\n" && got != "\x00\xff" || x.MIMEType == "" || x.URI != uri {
			t.Errorf("%s holds %+v", uri, x)
		}
	}
	if x, err := read("sandbox://" + work + "/d/f"); err != nil || x.Text != "deep\n" {
		t.Errorf("a file in a directory: %+v, %v", x, err)
	}
	for uri, words := range map[string]string{
		"sandbox://" + work + "/none":        "not found",
		"sandbox://" + work + "/large":       "sandbox_fs_read",
		"sandbox://" + work + "/d":           "",
		"sandbox://" + work + "/../../etc":   "",
		"sandbox:///etc/passwd":              "blocked",
		"sandbox://host/" + work + "/d/f":    "",
		"file:///etc/passwd":                 "not found",
		"sandbox://" + work + "/d%2ff?x=%00": "",
	} {
		if x, err := read(uri); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %+v, %v; want an error with %q", uri, x, err, words)
		}
	}
	all, err := session.List(t.Context(), p, "")
	if err != nil || len(all) != 1 {
		t.Fatalf("sessions: %+v, %v", all, err)
	}
	sb, err := p.Get(t.Context(), all[0].Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if got := list(); len(got) > 0 {
		t.Errorf("of a sandbox that has stopped: %q", got)
	}
	if st, err := sb.Status(t.Context()); err != nil || st.State != atoll.StateStopped {
		t.Errorf("listing has made it %+v, %v", st, err)
	}
	c.wantFields("sandbox_close", m{}, "closed", true)
	if got := list(); len(got) > 0 {
		t.Errorf("after it was closed: %q", got)
	}
}

// Each MCP session has a sandbox of its own, which ends with it.
func TestSessionsAreApart(t *testing.T) {
	p := testsession.Open(t)
	s := newServer(t, p, tools.Options{}, mcp.Options{})
	a, b := dialStreams(t, s, nil), dialStreams(t, s, nil)
	a.wantFields("sandbox_fs_write", m{"path": "f", "content": "a"})
	b.wantFields("sandbox_fs_list", m{}, "entries", "[]")
	if got := listSessions(t, p); len(got) != 2 || !strings.HasPrefix(got[0], "workflow_mcp_") {
		t.Errorf("sessions: %q", got)
	}
	a.hangUp()
	if got := listSessions(t, p); len(got) != 1 {
		t.Errorf("sessions after one has ended: %q", got)
	}
	b.wantFields("sandbox_exec", m{"command": "echo still here"}, "stdout", "still here\n")
	b.hangUp()
	if got, err := p.List(t.Context(), atoll.Filter{}); err != nil || len(got) > 0 {
		t.Errorf("sandboxes are left: %+v, %v", got, err)
	}
}

// Clients that name a workflow share its sandbox, which stays when they end. Agents
// with a session of their own don't, and their own sandboxes end.
func TestGivenScope(t *testing.T) {
	p := testsession.Open(t)
	wf := tools.Caller{ExecutionContext: session.ExecutionContext{WorkflowRunID: "wf1"}}
	s := newServer(t, p, tools.Options{}, mcp.Options{Caller: wf})
	a := dialStreams(t, s, nil)
	a.wantFields("sandbox_fs_write", m{"path": "f", "content": "a"})
	a.hangUp()
	b := dialStreams(t, s, nil)
	b.wantFields("sandbox_fs_read", m{"path": "f"}, "content", "a")
	own := dialStreams(t, newServer(t, p, tools.Options{Agent: &frontmatter.Sandbox{
		Mode: frontmatter.ModeCode, Session: frontmatter.SessionAgent, Limits: frontmatter.DefaultLimits(),
	}}, mcp.Options{Caller: wf}), nil)
	own.wantFields("sandbox_fs_list", m{}, "entries", "[]")
	if got := listSessions(t, p); len(got) != 2 || !strings.HasPrefix(got[0], "agent_mcp_") || got[1] != "workflow_wf1_sandbox" {
		t.Errorf("sessions: %q", got)
	}
	own.hangUp()
	b.hangUp()
	named := dialStreams(t, newServer(t, p, tools.Options{}, mcp.Options{Caller: tools.Caller{Scope: session.Scope{Kind: session.ScopeConversation, ID: "c1"}}}), nil)
	named.wantFields("sandbox_open", m{}, "session_id", "conversation_c1_sandbox")
	named.hangUp()
	if got := fmt.Sprint(listSessions(t, p)); got != "[conversation_c1_sandbox workflow_wf1_sandbox]" {
		t.Errorf("sessions at the end: %s", got)
	}
	kit, err := tools.New(p, tools.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer kit.Close()
	if _, err := mcp.NewServer(kit, mcp.Options{Caller: tools.Caller{Scope: session.Scope{Kind: "x", ID: "y"}}}); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("a scope that is none: %v", err)
	}
}
