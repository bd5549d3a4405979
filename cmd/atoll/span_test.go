//go:build linux

package main

import (
	"bytes"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A command is one trace, with or without a server, and part of the trace that its environment names.
func TestTraces(t *testing.T) {
	const traceID = "0af7651916cd43dd8448eb211c80319c"
	id, err := hex.DecodeString(traceID)
	if err != nil {
		t.Fatal(err)
	}
	collector := newCollector(t)
	env := atEnv(t)
	traced := append(env, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "TRACEPARENT=00-"+traceID+"-b7ad6b7169203331-01")

	// A command that ends does not wait long for the collector: on a busy machine its spans may be lost.
	for end := time.Now().Add(testenv.Scale(20 * time.Second)); ; {
		for _, args := range [][]string{{"run", "--", "true"}, {"volume", "ls"}} {
			runAtoll(t, traced, args...)
		}
		missing := slices.DeleteFunc([]string{"atoll run", "atoll.create", "atoll.remove", "atoll volume ls", "atoll.volumes"}, func(name string) bool {
			return collector.saw(name, string(id))
		})
		if len(missing) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the spans %q of trace %s were not sent", missing, traceID)
		}
	}
	runAtoll(t, traced, "config")
	runAtoll(t, traced, "version")
	if collector.saw("atoll config") || collector.saw("atoll version") {
		t.Error("a command without calls has a span")
	}

	collector.forget()
	server := atollCmd(append(env, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL), "atoll", "serve")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer server.Process.Kill()
	waitSocket(t, env)
	// This command sends no spans, but forwards the trace.
	runAtoll(t, append(env, "TRACEPARENT=00-"+traceID+"-b7ad6b7169203331-01"), "run", "--", "true")
	if err := server.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
	if !collector.saw("atoll.create", string(id)) {
		t.Errorf("the server sent no span atoll.create of trace %s", traceID)
	}
}

// A missing collector does not affect commands.
func TestNoCollector(t *testing.T) {
	collector := newCollector(t)
	collector.Close()
	out := runAtoll(t, append(atEnv(t), "ATOLL_LOG_LEVEL=", "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL), "ls", "-q")
	if strings.Contains(out, "traces") {
		t.Errorf("it says %q", out)
	}
	out = runAtoll(t, append(atEnv(t), "ATOLL_LOG_LEVEL=warn", "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL), "ls", "-q")
	if !strings.Contains(out, "msg=traces") {
		t.Errorf("asked for warnings, it says %q", out)
	}
}

// runAtoll runs a command, which must succeed, and returns its whole output.
func runAtoll(t *testing.T, env []string, args ...string) string {
	t.Helper()
	out, err := atollCmd(env, "atoll", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("atoll %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// waitSocket waits until a server answers in the state directory of env.
func waitSocket(t *testing.T, env []string) {
	t.Helper()
	socket := ""
	for _, kv := range env {
		if state, ok := strings.CutPrefix(kv, "XDG_STATE_HOME="); ok {
			socket = filepath.Join(state, "atoll", "atoll.sock")
		}
	}
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if conn, err := net.Dial("unix", socket); err == nil {
			conn.Close()
			return
		}
	}
	t.Fatalf("%s: the server did not come", socket)
}

// A collector records the requests of exporters.
type collector struct {
	*httptest.Server
	mu   sync.Mutex
	sent [][]byte // guarded by mu
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sent = append(c.sent, b)
	}))
	t.Cleanup(c.Server.Close)
	return c
}

func (c *collector) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = nil
}

// saw reports whether one request has all parts.
func (c *collector) saw(parts ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.sent {
		all := true
		for _, p := range parts {
			all = all && bytes.Contains(b, []byte(p))
		}
		if all {
			return true
		}
	}
	return false
}
