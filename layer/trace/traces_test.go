package trace_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/trace"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// A trace that another program has begun.
const (
	traceID     = "0af7651916cd43dd8448eb211c80319c"
	spanID      = "b7ad6b7169203331"
	traceparent = "00-" + traceID + "-" + spanID + "-01"
)

// newRecordedTraces returns Traces of one program, and the recorder of their spans.
func newRecordedTraces() (*trace.Traces, *tracetest.InMemoryExporter) {
	spans := tracetest.NewInMemoryExporter()
	return &trace.Traces{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))}, spans
}

// serveHTTP serves p over HTTP and returns its client.
func serveHTTP(t *testing.T, p atoll.Provider) atoll.Provider {
	t.Helper()
	h, err := api.NewHandler(p, api.Options{Extract: trace.Extract})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	c, err := client.New(t.Context(), client.Options{URL: server.URL, Inject: trace.Inject})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), h.Close()); err != nil {
			t.Errorf("Close: %v", err)
		}
		server.Close()
	})
	return c
}

func tracedLeaf(t *testing.T, traces *trace.Traces) atoll.Provider {
	t.Helper()
	p := trace.New(leaf(t), trace.Options{TracerProvider: traces})
	t.Cleanup(func() { p.Close() })
	return p
}

// useSandbox creates a sandbox, runs a command with streams in it, and removes it.
func useSandbox(t *testing.T, ctx context.Context, p atoll.Provider) {
	t.Helper()
	sb, err := p.Create(ctx, &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := atoll.Output(ctx, sb, &atoll.Command{Args: []string{"cat"}, Stdin: strings.NewReader("x")}); err != nil || string(out) != "x" {
		t.Errorf("cat: %q, %v", out, err)
	}
	if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
}

// The spans of a server are children of its client's, over plain requests and
// WebSockets.
func TestOneTraceAcrossHTTP(t *testing.T) {
	cli, cliSpans := newRecordedTraces()
	server, serverSpans := newRecordedTraces()
	ctx, end := cli.Command(t.Context(), "atoll run", []string{"HOME=/root"})
	useSandbox(t, ctx, serveHTTP(t, tracedLeaf(t, server)))
	end(nil)

	root := cliSpans.GetSpans()
	if len(root) != 1 || root[0].Name != "atoll run" || root[0].Parent.IsValid() {
		t.Fatalf("the client's spans: %+v, want one root", root)
	}
	var names []string
	for _, s := range serverSpans.GetSpans() {
		names = append(names, s.Name)
		if s.SpanContext.TraceID() != root[0].SpanContext.TraceID() || s.Parent.SpanID() != root[0].SpanContext.SpanID() || !s.Parent.IsRemote() {
			t.Errorf("%s: trace %s, parent %s (remote %v); want a child of the client's %s in %s", s.Name, s.SpanContext.TraceID(),
				s.Parent.SpanID(), s.Parent.IsRemote(), root[0].SpanContext.SpanID(), root[0].SpanContext.TraceID())
		}
	}
	for _, want := range []string{"atoll.create", "atoll.exec", "atoll.remove"} {
		if !slices.Contains(names, want) {
			t.Errorf("the server's spans are %q: no %s", names, want)
		}
	}
}

// A server whose provider is another server passes the trace on.
func TestOneTraceAcrossTwoHops(t *testing.T) {
	front, frontSpans := newRecordedTraces()
	back, backSpans := newRecordedTraces()
	middle := trace.New(serveHTTP(t, tracedLeaf(t, back)), trace.Options{TracerProvider: front})
	cli := trace.NewTraces(t.Context(), trace.TracesOptions{})
	ctx, end := cli.Command(t.Context(), "atoll run", []string{"TRACEPARENT=" + traceparent})
	useSandbox(t, ctx, serveHTTP(t, middle))
	end(nil)
	if err := cli.Close(); err != nil {
		t.Error(err)
	}

	parents := map[oteltrace.SpanID]string{}
	for _, s := range frontSpans.GetSpans() {
		parents[s.SpanContext.SpanID()] = s.Name
		if got := s.SpanContext.TraceID().String(); got != traceID || s.Parent.SpanID().String() != spanID {
			t.Errorf("front %s: trace %s, parent %s; want %s, %s", s.Name, got, s.Parent.SpanID(), traceID, spanID)
		}
	}
	of := map[string]string{}
	for _, s := range backSpans.GetSpans() {
		if got := s.SpanContext.TraceID().String(); got != traceID {
			t.Errorf("back %s: trace %s, want %s", s.Name, got, traceID)
		}
		of[s.Name] = parents[s.Parent.SpanID()]
	}
	for _, name := range []string{"atoll.create", "atoll.exec", "atoll.remove"} {
		if of[name] != name {
			t.Errorf("the back's %s is a child of %q, want of the front's", name, of[name])
		}
	}
}

func TestNoTraceIsNone(t *testing.T) {
	server, spans := newRecordedTraces()
	useSandbox(t, t.Context(), serveHTTP(t, tracedLeaf(t, server)))
	for _, s := range spans.GetSpans() {
		if s.Parent.IsValid() {
			t.Errorf("%s has an unexpected parent", s.Name)
		}
	}
	h := http.Header{}
	trace.Inject(t.Context(), h)
	if len(h) > 0 {
		t.Errorf("headers %v, want none", h)
	}
}

func TestLogNamesTheTrace(t *testing.T) {
	var log bytes.Buffer
	p := trace.New(leaf(t), trace.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	defer p.Close()
	useSandbox(t, t.Context(), p)
	if strings.Contains(log.String(), "trace=") {
		t.Errorf("unexpected trace:\n%s", &log)
	}
	log.Reset()
	useSandbox(t, trace.Extract(t.Context(), http.Header{"Traceparent": {traceparent}}), p)
	if n := strings.Count(log.String(), "trace="+traceID); n != strings.Count(log.String(), "\n") || n == 0 {
		t.Errorf("%d records name the trace:\n%s", n, &log)
	}
}

func TestCommandFails(t *testing.T) {
	cli, spans := newRecordedTraces()
	_, end := cli.Command(t.Context(), "atoll rm", nil)
	end(atoll.E("remove", "web", atoll.ErrNotFound, nil))
	s := spans.GetSpans()[0]
	if s.Status.Code != codes.Error || len(s.Attributes) != 1 || s.Attributes[0].Value.AsString() != "not found" {
		t.Errorf("status %+v, attributes %v; want an error of kind not found", s.Status, s.Attributes)
	}
}

// A collector accepts spans over HTTP, or rejects them.
type collector struct {
	*httptest.Server
	answer func(http.ResponseWriter, *http.Request)

	mu   sync.Mutex
	body []byte // guarded by mu
}

func newCollector(t *testing.T, answer func(http.ResponseWriter, *http.Request)) *collector {
	c := &collector{answer: answer}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		c.mu.Lock()
		c.body = append(c.body, b...)
		c.mu.Unlock()
		if c.answer != nil {
			c.answer(w, r)
		}
	}))
	t.Cleanup(c.Server.Close)
	return c
}

func (c *collector) received(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.body, []byte(text))
}

// otelEnv sets these variables of OpenTelemetry and unsets all others.
func otelEnv(t *testing.T, env map[string]string) {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	for name, value := range env {
		t.Setenv(name, value)
	}
}

func TestNewTraces(t *testing.T) {
	tests := []struct {
		name string
		env  map[string]string // %s in a value is the collector
		sent bool
		warn string
	}{
		{"nothing is set", nil, false, ""},
		{"an endpoint", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "%s"}, true, ""},
		{"one for traces alone", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "%s/v1/traces"}, true, ""},
		{"switched off", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "%s", "OTEL_SDK_DISABLED": "true"}, false, ""},
		{"no exporter", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "%s", "OTEL_TRACES_EXPORTER": "none"}, false, ""},
		{"not by gRPC", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "%s", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, false, "use http/protobuf"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			to := newCollector(t, nil)
			for name, value := range tt.env {
				tt.env[name] = strings.ReplaceAll(value, "%s", to.URL)
			}
			otelEnv(t, tt.env)
			var log bytes.Buffer
			traces := trace.NewTraces(t.Context(), trace.TracesOptions{Version: "v1", Log: slog.New(slog.NewTextHandler(&log, nil))})
			_, end := traces.Command(t.Context(), "atoll run", []string{"TRACEPARENT=" + traceparent})
			end(nil)
			for range 2 {
				if err := traces.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			}
			if to.received("atoll run") != tt.sent || to.received("service.version") != tt.sent {
				t.Errorf("sent: %v, want %v", to.received("atoll run"), tt.sent)
			}
			if tt.warn == "" && log.Len() > 0 || !strings.Contains(log.String(), tt.warn) {
				t.Errorf("log %q, want %q", &log, tt.warn)
			}
		})
	}
}

// Failures to send spans are logged, and do not block the program for long.
func TestCollectorThatDoesNotWork(t *testing.T) {
	tests := []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request)
	}{
		{"refuses", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadRequest) }},
		{"asks for patience", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }},
		{"hangs", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			to := newCollector(t, tt.answer)
			otelEnv(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": to.URL})
			var log bytes.Buffer // read after Close
			traces := trace.NewTraces(t.Context(), trace.TracesOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
			_, end := traces.Command(t.Context(), "atoll run", nil)
			end(nil)
			begun := time.Now()
			if err := traces.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if took := time.Since(begun); took > testenv.Scale(10*time.Second) {
				t.Errorf("Close took %s", took)
			}
			if !strings.Contains(log.String(), "msg=traces lost=1") {
				t.Errorf("log %q, want it to say that a span was lost", &log)
			}
		})
	}
}
