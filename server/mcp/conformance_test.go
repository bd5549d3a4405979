package mcp_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/internal/duplex"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testsession"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/server/mcp"
)

// serveAPI serves s like atoll's server, behind a token, and returns the address of a
// proxy that adds the token, since the suite has none.
func serveAPI(t *testing.T, s *mcp.Server) string {
	t.Helper()
	handler, err := api.NewHandler(testsession.Open(t), api.Options{MCP: s, Tokens: map[string]auth.Account{"sesame": {}}})
	if err != nil {
		t.Fatal(err)
	}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l, front := listen(), listen()
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- api.Serve(ctx, handler, l) }()
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // hides errors of vanished clients
	proxy := &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: quiet, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: l.Addr().String()})
		r.Out.Host = r.In.Host // so that the server can detect DNS rebinding
		r.Out.Header.Set("Authorization", "Bearer sesame")
		if r.In.Header.Get("Mcp-Protocol-Version") == "2025-03-26" {
			// server-sse-polling sends this in one request, but the suite has negotiated a newer version.
			r.Out.Header.Set("Mcp-Protocol-Version", "2025-11-25")
		}
	}}
	door := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxy.ServeHTTP(w, duplex.Begin(w, r))
	})}
	go door.Serve(front)
	t.Cleanup(func() {
		door.Close()
		stop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return "http://" + front.Addr().String() + "/mcp"
}

// Every scenario of the conformance suite for servers passes, on a server with the
// suite's fixtures beside our own tools.
func TestConformance(t *testing.T) {
	node := testenv.NodePrograms(t)
	kit, err := tools.New(testsession.Open(t), tools.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kit.Close() })
	s, err := mcp.NewFixtures(kit, adaptFixtures, addFixtures)
	if err != nil {
		t.Fatal(err)
	}
	address := serveAPI(t, s)
	t.Cleanup(func() { s.Close() }) // before the proxy, so that it waits for no stream
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(5*time.Minute))
	defer cancel()
	suite := exec.CommandContext(ctx, filepath.Join(node, "conformance"), "server", "--url", address, "--suite", "all", "--output-dir", dir)
	suite.Env = append(os.Environ(), "PATH="+node+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, _ := suite.CombinedOutput() // its findings are in the files
	files, err := filepath.Glob(filepath.Join(dir, "*", "checks.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 30 {
		t.Fatalf("the suite has run %d scenarios only; it says\n%s", len(files), out)
	}
	passed := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var checks []struct{ ID, Name, Status, ErrorMessage string }
		if err := json.Unmarshal(data, &checks); err != nil {
			t.Fatal(err)
		}
		scenario, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(filepath.Dir(file)), "server-"), "-20")
		for _, c := range checks {
			switch c.Status {
			case "SUCCESS":
				passed++
			case "INFO", "SKIPPED":
				t.Logf("%s, %s: %s", scenario, c.ID, c.Status)
			default:
				t.Errorf("%s, %s: %s: %s", scenario, c.ID, c.Status, c.ErrorMessage)
			}
		}
	}
	t.Logf("%d scenarios, %d checks passed", len(files), passed)
	if passed < 35 {
		t.Errorf("no more than %d checks passed", passed)
	}
}
