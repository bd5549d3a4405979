//go:build linux

package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/duplex"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// inspect runs the Inspector, a client by another project, and returns its output.
func inspect(t *testing.T, env []string, server []string, args ...string) string {
	t.Helper()
	node := testenv.NodePrograms(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
	defer cancel()
	target, command, dashes := server, []string(nil), slices.Index(server, "--")
	if dashes >= 0 {
		target, command = server[:dashes], server[dashes:]
	}
	cmd := exec.CommandContext(ctx, filepath.Join(node, "mcp-inspector"), slices.Concat([]string{"--cli"}, target, args, command)...)
	cmd.Env = append(slices.Clone(env), "PATH="+node+string(os.PathListSeparator)+os.Getenv("PATH"), "MCP_CATALOG_PATH="+filepath.Join(stateOf(env), "inspector.json"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("inspector %q: %v\n%s\n%s", args, err, out, stderr.String())
	}
	if problems := stderr.String(); strings.Contains(problems, "arning") || strings.Contains(problems, "rror:") {
		t.Errorf("inspector %q: %s", args, problems)
	}
	return string(out)
}

// The Inspector lists and calls every tool, over streams and HTTP.
func TestInspector(t *testing.T) {
	testenv.Need(t, testenv.MCPPrograms)
	env := mcpEnv(t)
	address, token := serveTCP(t, env)
	// The name of the program must not matter.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	atoll := filepath.Join(stateOf(env), "bin", "atoll")
	if err := os.MkdirAll(filepath.Dir(atoll), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, atoll); err != nil {
		t.Fatal(err)
	}
	stdio := []string{"--transport", "stdio"}
	for _, kv := range env { // the Inspector passes only explicit variables to the programs that it starts
		if strings.HasPrefix(kv, "ATOLL_") || strings.HasPrefix(kv, "XDG_") {
			stdio = append(stdio, "-e", kv)
		}
	}
	for name, server := range map[string][]string{
		"stdio": append(stdio, "--", atoll, "mcp", "--workflow", "wf1"),
		"http":  {"http://" + address + "/mcp", "--transport", "http", "--header", "Authorization: Bearer " + token, "Atoll-Workflow: wf2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inspectAll(t, env, server)
		})
	}
}

func inspectAll(t *testing.T, env []string, server []string) {
	var listed struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal([]byte(inspect(t, env, server, "--method", "tools/list", "--strict")), &listed); err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, x := range listed.Tools {
		left[x.Name] = true
	}
	if len(left) != 15 {
		t.Errorf("missing tools: %v", left)
	}
	call := func(name string, args ...string) map[string]any {
		t.Helper()
		delete(left, name)
		argv := []string{"--method", "tools/call", "--tool-name", name}
		if len(args) > 0 {
			argv = append(append(argv, "--tool-arg"), args...)
		}
		var r struct {
			IsError           bool
			StructuredContent map[string]any
		}
		if out := inspect(t, env, server, argv...); json.Unmarshal([]byte(out), &r) != nil || r.IsError || r.StructuredContent == nil {
			t.Fatalf("%s: %s", name, out)
		}
		return r.StructuredContent
	}
	work := call("sandbox_open")["workdir"].(string)
	call("sandbox_fs_write", "path=f", "content=one two")
	call("sandbox_fs_edit", "path=f", "old_text=two", "new_text=three")
	if got := call("sandbox_fs_read", "path=f")["content"]; got != "one three" {
		t.Errorf("the file holds %q", got)
	}
	call("sandbox_fs_list")
	call("sandbox_fs_search", "content=three")
	if got := call("sandbox_exec", "command=cat f")["stdout"]; got != "one three" {
		t.Errorf("stdout = %q", got)
	}
	if got := inspect(t, env, server, "--method", "resources/list"); !strings.Contains(got, `"sandbox://`+work+`/f"`) {
		t.Errorf("resources: %s", got)
	}
	if got := inspect(t, env, server, "--method", "resources/read", "--uri", "sandbox://"+work+"/f"); !strings.Contains(got, "one three") {
		t.Errorf("the resource: %s", got)
	}
	id := call("sandbox_exec", "command=read line; echo got $line; read line", "background=true")["process_id"].(string)
	call("sandbox_process_write", `process_id="`+id+`"`, `input="a\n"`)
	call("sandbox_process_read", `process_id="`+id+`"`)
	call("sandbox_process_kill", `process_id="`+id+`"`, "signal=KILL")
	if got := call("sandbox_process_wait", `process_id="`+id+`"`)["exit_code"]; got != 137.0 {
		t.Errorf("exit code %v", got)
	}
	call("sandbox_port", "port=1")
	call("sandbox_run", "runtime=bash", "code=echo hi")
	call("sandbox_fs_delete", "path=f")
	call("sandbox_close")
	if len(left) > 0 {
		t.Errorf("tools not called: %v", left)
	}
}

// The product passes the scenarios of the conformance suite that apply to every server; the test of package mcp runs
// the others. The suite has no token, so a proxy adds it: to requests for a local name only, since a web page whose name
// was made to resolve to this machine has no token.
func TestServeConformance(t *testing.T) {
	node := testenv.NodePrograms(t)
	env := mcpEnv(t)
	address, token := serveTCP(t, env)
	to := &url.URL{Scheme: "http", Host: address}
	forward := &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
		if name, _, _ := net.SplitHostPort(r.In.Host); name == "127.0.0.1" || name == "localhost" {
			r.Out.Header.Set("Authorization", "Bearer "+token)
		}
	}}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		forward.ServeHTTP(w, duplex.Begin(w, r))
	}))
	defer proxy.Close()
	for _, scenario := range []string{"server-initialize", "ping", "tools-list", "resources-list", "dns-rebinding-protection"} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(node, "conformance"), "server", "--url", proxy.URL+"/mcp", "--scenario", scenario)
		cmd.Env = append(slices.Clone(env), "PATH="+node+string(os.PathListSeparator)+os.Getenv("PATH"))
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "0 failed") {
			t.Errorf("%s: %v\n%s", scenario, err, out)
		}
	}
}
