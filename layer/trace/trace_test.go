package trace_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/trace"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func leaf(t *testing.T) atoll.Provider {
	t.Helper()
	p, err := mock.New(mock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Package trace forwards every call, which TestForwards checks, and wraps processes, files, connections,
// watches and errors, whose groups the suite runs here.
func TestConformance(t *testing.T) {
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		metrics := newMetrics(t)
		return trace.New(leaf(t), trace.Options{
			Log:            slog.New(slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})),
			TracerProvider: sdktrace.NewTracerProvider(),
			MeterProvider:  metrics,
		})
	}, providertest.Only("exec", "time", "files", "watch", "errors", "caps", "dial"), providertest.WireOnly())
}

func TestForwards(t *testing.T) {
	providertest.CheckLayer(t, func(p atoll.Provider) atoll.Provider { return trace.New(p, trace.Options{}) })
	providertest.CheckLayer(t, func(p atoll.Provider) atoll.Provider { return trace.Workspaces(p, trace.Options{}) })
	providertest.CheckLayer(t, func(p atoll.Provider) atoll.Provider { return trace.Sessions(p, trace.Options{}) })
}

func TestFaults(t *testing.T) {
	providertest.EachFault(t, func(t *testing.T, plan *providertest.Plan) {
		p := trace.New(providertest.Faulty(leaf(t), plan), trace.Options{})
		t.Cleanup(func() { p.Close() })
		sb, err := p.Create(t.Context(), &atoll.Spec{})
		if err != nil {
			return
		}
		atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"true"}})
		if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
			if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove, tried again: %v", err)
			}
		}
	})
}

func newMetrics(t *testing.T) *trace.Metrics {
	t.Helper()
	metrics, err := trace.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := metrics.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
	})
	return metrics
}

// useEverything calls many methods, and returns the ids of the sandbox and of a process. Values
// that must not appear in reports contain "secret".
func useEverything(t *testing.T, p atoll.Provider) (sandbox, process string) {
	t.Helper()
	ctx := t.Context()
	sb, err := p.Create(ctx, &atoll.Spec{Name: "web", Env: []string{"TOKEN=secret-env"}})
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	cmd := &atoll.Command{
		Args: []string{"cat", "-", "args-at-debug-only"}, Env: []string{"KEY=secret-env"},
		Stdin: strings.NewReader("secret-stdin"), Stdout: io.Discard, Stderr: io.Discard,
	}
	proc, err := sb.Exec(ctx, cmd)
	if err != nil {
		t.Fatalf("Exec: %v", err)
	}
	if _, err := proc.Wait(ctx); err != nil {
		t.Errorf("Wait: %v", err)
	}
	if err := atoll.WriteFile(ctx, sb, "name-at-debug-only", []byte("secret-body"), 0); err != nil {
		t.Errorf("WriteFile: %v", err)
	}
	if _, err := atoll.ReadFile(ctx, sb, "missing"); atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("ReadFile: %v, want it not to exist", err)
	}
	if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
		t.Errorf("Remove: %v", err)
	}
	return sb.ID(), proc.ID()
}

func TestLog(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		t.Run(level.String(), func(t *testing.T) {
			var buf bytes.Buffer
			log := slog.New(slog.NewJSONHandler(&buf, &slog.HandlerOptions{Level: level}))
			p := trace.New(leaf(t), trace.Options{Log: log})
			defer p.Close()
			sandbox, process := useEverything(t, p)
			if strings.Contains(buf.String(), "secret") {
				t.Errorf("the log contains a secret:\n%s", &buf)
			}
			for _, word := range []string{"args-at-debug-only", "name-at-debug-only"} {
				if got, want := strings.Contains(buf.String(), word), level == slog.LevelDebug; got != want {
					t.Errorf("level %v: the log has %q: %v, want %v", level, word, got, want)
				}
			}
			records := parseLog(t, &buf)
			want := map[string][]string{ // level and message of each verb
				"create": {"INFO", "ok"}, "exec": {"DEBUG", "ok"}, "wait": {"DEBUG", "ok"}, "remove": {"INFO", "ok"},
				"files.write": {"DEBUG", "ok"}, "files.read": {"DEBUG", "not exist"},
			}
			for op, w := range want {
				if w[0] == "DEBUG" && level == slog.LevelInfo {
					continue
				}
				i := slices.IndexFunc(records, func(r map[string]any) bool { return r["msg"] == op })
				if i < 0 {
					t.Errorf("the log has no %q", op)
					continue
				}
				r := records[i]
				kind, _ := r["kind"].(string)
				if kind == "" {
					kind = "ok"
				}
				if r["level"] != w[0] || kind != w[1] || r["op"] != op || r["provider"] != "mock" || r["sandbox"] != sandbox {
					t.Errorf("%s is logged as %v, want %v", op, r, w)
				}
				if _, ok := r["dur"]; !ok {
					t.Errorf("%s has no duration: %v", op, r)
				}
				if op == "wait" && r["process"] != process {
					t.Errorf("%s has process %v, want %s", op, r["process"], process)
				}
				if _, failed := r["err"]; failed != (w[1] != "ok") {
					t.Errorf("%s: err is %v", op, r["err"])
				}
			}
		})
	}
}

type who struct{}

func TestLogAttrs(t *testing.T) {
	var buf bytes.Buffer
	p := trace.New(leaf(t), trace.Options{
		Log:   slog.New(slog.NewJSONHandler(&buf, nil)),
		Attrs: func(ctx context.Context) []slog.Attr { return []slog.Attr{slog.Any("who", ctx.Value(who{}))} },
	})
	defer p.Close()
	ctx := context.WithValue(t.Context(), who{}, "me")
	sb, err := p.Create(ctx, &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
	records := parseLog(t, &buf)
	if len(records) != 2 {
		t.Errorf("there are %d records, want 2", len(records))
	}
	for _, r := range records {
		if r["who"] != "me" {
			t.Errorf("%v lacks the account", r)
		}
	}
}

func TestLogLevels(t *testing.T) {
	for kind, want := range map[atoll.Kind]string{
		atoll.ErrInternal: "ERROR", atoll.ErrUnavailable: "WARN", atoll.ErrExhausted: "WARN",
		atoll.ErrNotFound: "INFO", atoll.ErrInvalid: "INFO",
	} {
		var buf bytes.Buffer
		p := trace.New(broken{kind: kind}, trace.Options{Log: slog.New(slog.NewJSONHandler(&buf, nil))})
		if _, err := p.Create(t.Context(), &atoll.Spec{}); atoll.KindOf(err) != kind {
			t.Errorf("Create: %v, want kind %q", err, kind)
		}
		if r := parseLog(t, &buf); len(r) != 1 || r[0]["level"] != want || r[0]["kind"] != string(kind) {
			t.Errorf("a create that fails as %q is logged as %v, want level %s", kind, r, want)
		}
	}
}

// broken is a provider whose Create fails.
type broken struct {
	atoll.Provider
	kind atoll.Kind
}

func (b broken) Info() atoll.Info { return atoll.Info{Name: "broken"} }
func (b broken) Create(context.Context, *atoll.Spec) (atoll.Sandbox, error) {
	return nil, atoll.E("create", "", b.kind, nil)
}

func parseLog(t *testing.T, buf *bytes.Buffer) []map[string]any {
	t.Helper()
	var records []map[string]any
	for d := json.NewDecoder(buf); ; {
		var r map[string]any
		if err := d.Decode(&r); err == io.EOF {
			return records
		} else if err != nil {
			t.Fatalf("the log is no JSON: %v", err)
		}
		records = append(records, r)
	}
}

func TestMetrics(t *testing.T) {
	metrics := newMetrics(t)
	p := trace.New(leaf(t), trace.Options{MeterProvider: metrics})
	sandbox, process := useEverything(t, p)
	sb, err := p.Create(t.Context(), &atoll.Spec{NoStart: true})
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	text := scrape(t, metrics)
	for _, want := range []string{
		`atoll_calls_total{kind="ok",op="create",provider="mock"} 2`,
		`atoll_calls_total{kind="ok",op="exec",provider="mock"} 1`,
		`atoll_calls_total{kind="not exist",op="files.read",provider="mock"} 1`,
		`atoll_call_seconds_count{op="create",provider="mock"} 2`,
		`atoll_call_seconds_bucket{op="exec",provider="mock",le="0.001"}`,
		`atoll_sandboxes{provider="mock",state="created"} 1`,
		`go_goroutines`,
		`process_open_fds`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	for _, id := range []string{sandbox, process, sb.ID(), "secret", "only"} {
		if strings.Contains(text, id) {
			t.Errorf("the metrics have a label with %q", id)
		}
	}
	labels := regexp.MustCompile(`(?m)^atoll_[a-z_]+\{([^}]*)\}`)
	for _, m := range labels.FindAllStringSubmatch(text, -1) {
		for kv := range strings.SplitSeq(m[1], ",") {
			if k, _, _ := strings.Cut(kv, "="); !slices.Contains([]string{"provider", "op", "kind", "state", "le"}, k) {
				t.Errorf("unexpected label %q: %s", k, m[0])
			}
		}
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if strings.Contains(scrape(t, metrics), "atoll_sandboxes{") {
		t.Error("the metrics count sandboxes although there are none")
	}
	if err := p.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if text := scrape(t, metrics); !strings.Contains(text, "atoll_calls_total") {
		t.Error("cannot read the metrics after Close")
	}
}

func scrape(t *testing.T, metrics *trace.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	metrics.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("GET /metrics: %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestSpans(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	p := trace.New(leaf(t), trace.Options{TracerProvider: provider})
	defer p.Close()
	ctx, root := provider.Tracer("test").Start(t.Context(), "root")
	sb, err := p.Create(ctx, &atoll.Spec{})
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	if _, err := sb.Process(ctx, "nope"); atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("Process: %v", err)
	}
	if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
		t.Errorf("Remove: %v", err)
	}
	root.End()
	var names []string
	for _, s := range spans.Ended() {
		names = append(names, s.Name())
		if s.Name() == "root" {
			continue
		}
		if s.Parent().SpanID() != root.SpanContext().SpanID() {
			t.Errorf("span %s is not below its caller's", s.Name())
		}
		attrs := map[string]string{}
		for _, a := range s.Attributes() {
			attrs[string(a.Key)] = a.Value.AsString()
		}
		if attrs["atoll.sandbox"] != sb.ID() || attrs["atoll.provider"] != "mock" {
			t.Errorf("span %s has attributes %v", s.Name(), attrs)
		}
		failed := s.Name() == "atoll.process"
		if got := s.Status().Code == codes.Error; got != failed || failed && attrs["atoll.kind"] != "not exist" {
			t.Errorf("span %s has status %v and attributes %v", s.Name(), s.Status(), attrs)
		}
	}
	if want := []string{"atoll.create", "atoll.process", "atoll.remove", "root"}; !slices.Equal(names, want) {
		t.Errorf("the spans are %q, want %q", names, want)
	}
}

// Quiet calls appear only at level Debug.
func TestQuiet(t *testing.T) {
	var buf bytes.Buffer
	type aside struct{}
	p := trace.New(providertest.Faulty(leaf(t), providertest.FailCall(1)), trace.Options{
		Log:   slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Quiet: func(ctx context.Context) bool { return ctx.Value(aside{}) != nil },
	})
	defer p.Close()
	if _, err := p.List(context.WithValue(t.Context(), aside{}, true), atoll.Filter{}); atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Fatalf("List: %v", err)
	}
	if s := buf.String(); !strings.Contains(s, "level=DEBUG msg=list") || !strings.Contains(s, "kind=unavailable") {
		t.Errorf("the log is %s", s)
	}
}
