//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// An mcpClient is an agent that has started atoll mcp.
type mcpClient struct {
	*sdk.ClientSession
	t      *testing.T
	cmd    *exec.Cmd
	stderr *bytes.Buffer
}

func startMCP(t *testing.T, env []string, args ...string) *mcpClient {
	t.Helper()
	c := &mcpClient{t: t, cmd: atollCmd(env, "atoll", append([]string{"mcp"}, args...)...), stderr: &bytes.Buffer{}}
	c.cmd.Stderr = c.stderr
	var err error
	c.ClientSession, err = sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(t.Context(), &sdk.CommandTransport{Command: c.cmd, TerminateDuration: deadline}, nil)
	if err != nil {
		t.Fatalf("%v; stderr:\n%s", err, c.stderr)
	}
	t.Cleanup(func() { c.ClientSession.Close() })
	return c
}

func (c *mcpClient) call(name string, input map[string]any) map[string]any {
	c.t.Helper()
	return mcpCall(c.t, c.ClientSession, name, input)
}

func mcpCall(t *testing.T, c *sdk.ClientSession, name string, input map[string]any) map[string]any {
	t.Helper()
	r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: input})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	out, ok := r.StructuredContent.(map[string]any)
	if r.IsError || !ok {
		t.Fatalf("%s: %s", name, r.Content[0].(*sdk.TextContent).Text)
	}
	return out
}

// hangUp ends the session as an agent does, and returns the output on stderr.
func (c *mcpClient) hangUp() string {
	c.t.Helper()
	if err := c.ClientSession.Close(); err != nil {
		c.t.Errorf("the end: %v; stderr:\n%s", err, c.stderr)
	}
	return c.stderr.String()
}

func (c *mcpClient) names() (names []string) {
	c.t.Helper()
	for x, err := range c.Tools(c.t.Context(), nil) {
		if err != nil {
			c.t.Fatal(err)
		}
		names = append(names, x.Name)
	}
	return names
}

// mcpEnv uses the programs of this machine for the images linux and python, since the provider local has no images.
func mcpEnv(t *testing.T, more ...string) []string {
	return slices.Concat(atEnv(t), []string{"ATOLL_TOOLS_IMAGES=linux=host,python=host", "ATOLL_PROVIDERS=local"}, more)
}

func atollOut(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := atollCmd(env, "atoll", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("atoll %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// An agent that returns after the idle timeout gets another sandbox, and a note about it.
func TestMCPIdle(t *testing.T) {
	idle := max(5*time.Second, testenv.Scale(3*time.Second)).Round(time.Second).String() // longer than opening and writing take
	env := mcpEnv(t)
	c := startMCP(t, env, "--idle-timeout", idle)
	first := c.call("sandbox_open", nil)["sandbox_id"]
	c.call("sandbox_fs_write", map[string]any{"path": "of-the-first", "content": "x"})
	there := func() (found bool) {
		for _, kv := range env {
			if dir, ok := strings.CutPrefix(kv, "XDG_STATE_HOME="); ok {
				_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, _ error) error { // it may disappear meanwhile
					found = found || filepath.Base(path) == "of-the-first"
					return nil
				})
			}
		}
		return found
	}
	if !there() {
		t.Fatal("cannot find the file of the sandbox")
	}
	for end := time.Now().Add(testenv.Scale(time.Minute)); there(); time.Sleep(50 * time.Millisecond) { // a call before the removal would extend the life of the sandbox
		if time.Now().After(end) {
			t.Fatalf("the sandbox still exists a minute after %s", idle)
		}
	}
	r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "sandbox_fs_read", Arguments: map[string]any{"path": "of-the-first"}})
	if err != nil {
		t.Fatal(err)
	}
	want := "The sandbox was gone (it ends after " + idle + " without use, or after 4h0m0s): this is a new one, without the files of the old one. In it: "
	if text := r.Content[0].(*sdk.TextContent).Text; !r.IsError || !strings.Contains(text, want) {
		t.Errorf("sandbox_fs_read: %s", text)
	}
	if again := c.call("sandbox_open", nil); again["sandbox_id"] == first || again["note"] != nil {
		t.Errorf("sandbox_open: %v, was %v", again, first)
	}
	c.hangUp()
}

// The image of the agent's sandbox also applies to programs on Dagger, unless no engine could pull it.
func TestMCPDagger(t *testing.T) {
	dir := t.TempDir()
	cli := filepath.Join(dir, "cli")
	for name, text := range map[string]string{
		cli:                             "#!/bin/sh\necho there is no engine >&2\nexit 1\n",
		filepath.Join(dir, "python.md"): "---\nmodel: x\nsandbox:\n  runtime: python\n---\n",
		filepath.Join(dir, "image.md"):  "---\nmodel: x\nsandbox:\n  runtime: busybox:1\n---\n",
		filepath.Join(dir, "code.md"):   "---\nmodel: x\nsandbox:\n  mode: code\n---\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	env := slices.Concat(atEnv(t), []string{"ATOLL_PROVIDERS=local", "ATOLL_COMPUTE_BACKEND=dagger", "ATOLL_DAGGER_CLI=" + cli, "ATOLL_DAGGER_ENGINE=tcp://nowhere", "ATOLL_DOCKER_GUEST=/bin/true"})
	for _, args := range [][]string{
		{"--image", "host"}, {"--image", "/srv/root"}, {"--image", "busybox:1"},
		{"--image", "host", "--agent", filepath.Join(dir, "python.md")}, {"--image", "host", "--agent", filepath.Join(dir, "image.md")},
		{"--image", "busybox:1", "--agent", filepath.Join(dir, "python.md")},
	} {
		c := startMCP(t, env, args...)
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "sandbox_run", Arguments: map[string]any{"runtime": "python", "code": "1"}})
		if err != nil {
			t.Fatal(err)
		}
		// The backend was called: images that it cannot pull are refused before that.
		if text := r.Content[0].(*sdk.TextContent).Text; !strings.Contains(text, "there is no engine") {
			t.Errorf("%q: %s", args, text)
		}
		c.hangUp()
	}
	// An agent with a sandbox uses the image nevertheless.
	c := startMCP(t, env, "--image", "host", "--agent", filepath.Join(dir, "code.md"))
	if out := c.call("sandbox_exec", map[string]any{"command": "echo here"}); out["stdout"] != "here\n" {
		t.Errorf("the result is %v", out)
	}
	c.hangUp()
}

// Stdout has MCP messages only, even with much logging. The sandbox is removed at the end.
func TestMCP(t *testing.T) {
	env := mcpEnv(t, "ATOLL_CODE_COLOUR=blue", "ATOLL_CODE_SHAPE=round", "ATOLL_LOG_LEVEL=debug")
	c := startMCP(t, env, "--env", "SIZE=xl")
	c.call("sandbox_fs_write", map[string]any{"path": "f", "content": "x"})
	out := c.call("sandbox_exec", map[string]any{"command": "cat f; echo $COLOUR $SHAPE $SIZE", "env": map[string]any{"SHAPE": "square"}})
	if got := out["stdout"]; got != "xblue square xl\n" {
		t.Errorf("stdout = %q", got)
	}
	r, err := c.ListResources(t.Context(), nil)
	if err != nil || len(r.Resources) != 1 || r.Resources[0].Name != "f" {
		t.Errorf("resources: %+v, %v", r, err)
	}
	if log := c.hangUp(); !strings.Contains(log, "sandbox") {
		t.Errorf("the log is empty: %q", log)
	}
	if left := atollOut(t, env, "session", "ls", "-q") + atollOut(t, env, "ls", "-q"); left != "" {
		t.Errorf("left: %s", left)
	}
}

func TestMCPAgents(t *testing.T) {
	env := mcpEnv(t)
	for file, want := range map[string]int{"code-developer.md": 14, "data-analyst.md": 1, "": 15} {
		var args []string
		if file != "" {
			args = []string{"--agent", filepath.Join("..", "..", "examples", "agents", file)}
		}
		c := startMCP(t, env, args...)
		if got := c.names(); len(got) != want || slices.Contains(got, "sandbox_exec") == (file == "data-analyst.md") {
			t.Errorf("%s: the tools are %q", file, got)
		}
		c.hangUp()
	}
	plain := filepath.Join(t.TempDir(), "plain.md")
	if err := os.WriteFile(plain, []byte("---\nmodel: x\n---\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		words string
		env   string
		args  []string
	}{
		{"sandbox service is not enabled", "STATION_SANDBOX_CODE_MODE_ENABLED=false", nil},
		{"requests no sandbox", "", []string{"--agent", plain}},
		{"no such file", "", []string{"--agent", plain + ".no"}},
		{"cannot be combined with --workflow", "", []string{"--session", "session/x", "--workflow", "y"}},
		{"scope", "", []string{"--session", "x"}},
		{`id "a b"`, "", []string{"--workflow", "a b"}},
		{"unknown flag", "", []string{"--ttl", "1h"}},
	} {
		cmd := atollCmd(append(slices.Clone(env), tt.env), "atoll", append([]string{"mcp"}, tt.args...)...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err == nil || stdout.Len() > 0 || !strings.Contains(stderr.String(), tt.words) {
			t.Errorf("%q %s: %v, stdout %q, stderr %q; want words %q", tt.args, tt.env, err, stdout.String(), stderr.String(), tt.words)
		}
	}
}

// The number of forwarded ports is limited, and the ports of a closed sandbox are closed.
func TestDoorway(t *testing.T) {
	p, err := mock.New(mock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	d := &portForwarder{a: &app{}}
	d.ctx, d.cancel = context.WithCancel(t.Context())
	defer d.closeForwards()
	var first []net.Listener
	for range 2 {
		sb, err := p.Create(t.Context(), &atoll.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		for port := range maxForwards {
			if _, err := d.forwardURL(t.Context(), sb, port+1); err != nil {
				t.Fatal(err)
			}
		}
		if first == nil {
			first = slices.Collect(maps.Values(d.listeners))
		}
		if url, err := d.forwardURL(t.Context(), sb, maxForwards+1); atoll.KindOf(err) != atoll.ErrExhausted {
			t.Errorf("forwardURL above the limit: %s, %v", url, err)
		}
		if _, err := d.forwardURL(t.Context(), sb, 1); err != nil {
			t.Errorf("forwardURL of an open port: %v", err)
		}
	}
	if len(first) != maxForwards {
		t.Errorf("the first sandbox had %d listeners, want %d", len(first), maxForwards)
	}
	for _, l := range first { // another listener may have the port by now
		if err := l.(*net.TCPListener).SetDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s of the first sandbox is still open: %v", l.Addr(), err)
		}
	}
}

// The port of a server inside is forwarded until the agent ends.
func TestMCPPort(t *testing.T) {
	c := startMCP(t, mcpEnv(t))
	l, err := net.Listen("tcp", "127.0.0.1:0") // the provider local shares our ports
	if err != nil {
		t.Fatal(err)
	}
	inside := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "from inside") })}
	go inside.Serve(l)
	defer inside.Close()
	port := map[string]any{"port": l.Addr().(*net.TCPAddr).Port}
	url := fmt.Sprint(c.call("sandbox_port", port)["url"])
	if again := c.call("sandbox_port", port)["url"]; again != url || strings.HasSuffix(url, fmt.Sprint(port["port"])) {
		t.Errorf("the url is %s, then %s", url, again)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil || body.String() != "from inside" {
		t.Errorf("the answer is %q, %v", body.String(), err)
	}
	resp.Body.Close()
	c.hangUp()
	if _, err := client.Get(url); err == nil {
		t.Error("the port still answers")
	}
}

// With a server, agents that name the same workflow share its sandbox, which outlives them.
func TestMCPWorkflow(t *testing.T) {
	env := mcpEnv(t)
	startServer(t, env)
	writer := startMCP(t, env, "--workflow", "wf1", "--agent-run", "run1")
	writer.call("sandbox_fs_write", map[string]any{"path": "f", "content": "shared"})
	writer.hangUp()
	reader, other := startMCP(t, env, "--session", "workflow/wf1"), startMCP(t, env, "--session", "conversation/c1")
	if got := reader.call("sandbox_fs_read", map[string]any{"path": "f"})["content"]; got != "shared" {
		t.Errorf("the file holds %q", got)
	}
	if got := other.call("sandbox_open", nil)["session_id"]; got != "conversation_c1_sandbox" {
		t.Errorf("the session is %q", got)
	}
	reader.hangUp()
	other.hangUp()
	if got := atollOut(t, env, "session", "end", "workflow/wf1"); got != "workflow_wf1_sandbox\n" {
		t.Errorf("session end closes %q", got)
	}
}

// A program that needs a sandbox of its own gets a warm one from a pool.
func TestMCPRunsInOneOfAPool(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("pool:\n  programs: {size: 1, ttl: 1h, image: host}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := mcpEnv(t, "ATOLL_CONFIG="+file)
	startServer(t, env)
	for end := time.Now().Add(deadline); !strings.Contains(atollOut(t, env, "pool", "ls"), " 1/1 "); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the pool is not filled")
		}
	}
	c := startMCP(t, env)
	if got := c.call("sandbox_run", map[string]any{"runtime": "bash", "code": "echo hi"}); got["stdout"] != "hi\n" {
		t.Errorf("sandbox_run returns %v", got)
	}
	c.hangUp()
	if got := atollOut(t, env, "pool", "stats"); !regexp.MustCompile(`(?m)^programs +1 +0 `).MatchString(got) {
		t.Errorf("the sandbox is not from the pool:\n%s", got)
	}
	if left := atollOut(t, env, "ls", "-q"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// startServer starts a server, which ends with the test, and waits until it answers.
func startServer(t *testing.T, env []string, args ...string) *child {
	t.Helper()
	server := startChild(t, env, append([]string{"serve"}, args...)...)
	t.Cleanup(func() {
		server.cmd.Process.Signal(os.Interrupt)
		if code := server.exit(); code != 0 {
			t.Errorf("the server's exit code is %d; stderr:\n%s", code, server.stderr.String())
		}
	})
	client := socketClient(env)
	defer client.CloseIdleConnections()
	for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
		resp, err := client.Get("http://atoll/health")
		if err == nil {
			resp.Body.Close()
			return server
		}
		if server.hasEnded() {
			t.Fatal("the server ended before it answered") // its exit code and stderr follow
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// serveTCP starts a server that also listens on TCP, and returns its address and token.
func serveTCP(t *testing.T, env []string) (address, token string) {
	t.Helper()
	server := startServer(t, env, "--listen", "127.0.0.1:0")
	line := regexp.MustCompile(`listening on http://(\S+)\n`)
	for end := time.Now().Add(deadline); address == ""; time.Sleep(10 * time.Millisecond) {
		if found := line.FindStringSubmatch(server.stderr.String()); found != nil {
			address = found[1]
		} else if time.Now().After(end) {
			t.Fatalf("it prints no address; stderr:\n%s", server.stderr.String())
		}
	}
	text, err := os.ReadFile(filepath.Join(stateOf(env), "token"))
	if err != nil {
		t.Fatal(err)
	}
	return address, strings.TrimSpace(string(text))
}

// socketClient returns a client of the server of the state directory.
func socketClient(env []string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(stateOf(env), "atoll.sock"))
	}}}
}

// stateOf returns the state directory.
func stateOf(env []string) (dir string) {
	for _, kv := range env {
		if home, ok := strings.CutPrefix(kv, "XDG_STATE_HOME="); ok {
			dir = filepath.Join(home, "atoll")
		}
	}
	return dir
}

// bearer adds a token to requests.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// A server has the same tools for clients with its token.
func TestServeMCP(t *testing.T) {
	env := mcpEnv(t, "ATOLL_CODE_COLOUR=blue")
	address, token := serveTCP(t, env)
	base := "http://" + address
	client := &http.Client{Transport: bearer(token)}
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: base + "/mcp", HTTPClient: client}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if got := mcpCall(t, session, "sandbox_exec", map[string]any{"command": "echo $COLOUR"})["stdout"]; got != "blue\n" {
		t.Errorf("stdout = %q", got)
	}
	inside := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "from inside") })}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go inside.Serve(l)
	defer inside.Close()
	port := map[string]any{"port": l.Addr().(*net.TCPAddr).Port}
	url := fmt.Sprint(mcpCall(t, session, "sandbox_port", port)["url"])
	for _, c := range []*http.Client{client, http.DefaultClient} { // a user's browser has no token
		if status, body := fetch(t, c, "GET", url, ""); !strings.HasPrefix(url, base) || status != 200 || body != "from inside" {
			t.Errorf("%s answers %d %s", url, status, body)
		}
	}
	if status, body := fetch(t, client, "GET", base+"/v1/tools", ""); status != 200 || strings.Count(body, `"input_schema"`) != 15 {
		t.Errorf("the tools: %d %s", status, body)
	}
	if status, body := fetch(t, client, "POST", base+"/v1/tools/sandbox_open?workflow=wf1", "{}"); status != 200 || !strings.Contains(body, "workflow_wf1_sandbox") {
		t.Errorf("sandbox_open: %d %s", status, body)
	}
	if status, body := fetch(t, client, "POST", base+"/v1/tools/sandbox_fs_read?workflow=wf1", `{"path": "none"}`); status != 404 || !strings.Contains(body, "sandbox_fs_list") {
		t.Errorf("sandbox_fs_read: %d %s", status, body)
	}
	if status, body := fetch(t, http.DefaultClient, "POST", base+"/mcp", "{}"); status != 401 {
		t.Errorf("without a token: %d %s", status, body)
	}
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	if got := atollOut(t, env, "session", "ls", "-q"); got != "workflow_wf1_sandbox\n" {
		t.Errorf("sessions: %s", got)
	}

	off := mcpEnv(t, "STATION_SANDBOX_CODE_MODE_ENABLED=false")
	startServer(t, off)
	unix := socketClient(off)
	defer unix.CloseIdleConnections()
	for path, method := range map[string]string{"/mcp": "POST", "/v1/tools": "GET"} {
		if status, body := fetch(t, unix, method, "http://atoll"+path, ""); status != 501 || !strings.Contains(body, "sandbox service is not enabled") {
			t.Errorf("%s with disabled tools: %d %s", path, status, body)
		}
	}
}

func fetch(t *testing.T, client *http.Client, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, text.String()
}

// All tools except sandbox_run work in a directory that the sandbox uses in place.
func TestMCPWorkspace(t *testing.T) {
	needGVisor(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), []byte("mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	env := append(atEnv(t), "ATOLL_PROVIDER=gvisor", "ATOLL_PROVIDERS=gvisor", "ATOLL_TOOLS_IMAGES=linux=host")
	c := startMCP(t, env, "--workspace", dir)
	if got := c.call("sandbox_open", nil); got["workdir"] != "/workspace" || got["image"] != "host" {
		t.Errorf("the sandbox is %v", got)
	}
	c.call("sandbox_fs_edit", map[string]any{"path": "mine", "old_text": "mine", "new_text": "ours"})
	if got := c.call("sandbox_exec", map[string]any{"command": "cat mine; touch made; uname -r"})["stdout"]; !strings.HasPrefix(fmt.Sprint(got), "ours\n") || !strings.Contains(fmt.Sprint(got), "gvisor") {
		t.Errorf("stdout = %q", got)
	}
	r, err := c.ListResources(t.Context(), nil)
	if err != nil || len(r.Resources) != 2 || r.Resources[1].URI != "sandbox:///workspace/mine" {
		t.Errorf("resources: %+v, %v", r, err)
	}
	if got := c.call("sandbox_run", map[string]any{"runtime": "bash", "code": "ls; touch ran"}); got["stdout"] != "main.sh\n" {
		t.Errorf("sandbox_run returns %v", got)
	}
	c.hangUp()
	var names []string
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if fmt.Sprint(names) != "[made mine]" || err != nil {
		t.Errorf("the directory has %q, %v", names, err)
	}
	if left := atollOut(t, env, "ls", "-q") + atollOut(t, env, "volume", "ls", "-q"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// The configurations of agents in the manual have existing commands.
func TestManualConfigurations(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "coding-agents.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands := [][]string{}
	for _, block := range strings.Split(string(page), "```json\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		var file map[string]map[string]struct { // mcpServers or servers, by name
			Command string
			Args    []string
		}
		if err := json.Unmarshal([]byte(text), &file); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
		for _, servers := range file {
			for _, server := range servers {
				commands = append(commands, append([]string{server.Command}, server.Args...))
			}
		}
	}
	for line := range strings.Lines(string(page)) {
		if _, command, ok := strings.Cut(line, "claude mcp add atoll -- "); ok {
			commands = append(commands, strings.Fields(command))
		}
	}
	if len(commands) != 3 {
		t.Errorf("the commands are %q", commands)
	}
	for _, c := range commands {
		if c[0] != "atoll" || c[1] != "mcp" {
			t.Errorf("the command is %q", c)
		}
		if err := newMCP(&app{}).ParseFlags(c[2:]); err != nil {
			t.Errorf("%q: %v", c, err)
		}
	}
}
