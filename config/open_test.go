package config

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/providertest"
	"github.com/seed46cd37a8/atoll/trace"
)

// The whole stack keeps the promises of a provider.
func TestConformance(t *testing.T) {
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		cfg := &Config{StateDir: t.TempDir(), Provider: "mock", Resources: Resources{Memory: 1 << 30}}
		p, err := Open(cfg, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}, providertest.Pullable("docker.io/library/app:1"))
}

func TestOpenMetrics(t *testing.T) {
	metrics, err := trace.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	defer metrics.Close()
	var log bytes.Buffer
	p, err := Open(&Config{StateDir: t.TempDir(), Provider: "mock"}, Options{Calls: slog.New(slog.NewTextHandler(&log, nil)), Metrics: metrics})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("the second Close: %v", err)
	}
	if !strings.Contains(log.String(), "msg=create provider=mock") {
		t.Errorf("the log does not tell of the sandbox:\n%s", log.String())
	}
}

func TestOpenTraces(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	traces := &trace.Traces{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))}
	p, err := Open(&Config{StateDir: t.TempDir(), Provider: "mock"}, Options{Traces: traces})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx, end := traces.Command(t.Context(), "atoll create", nil)
	sb, err := p.Create(ctx, &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	end(nil)
	all := spans.GetSpans()
	if len(all) != 2 || all[0].Name != "atoll.create" || all[0].Parent.SpanID() != all[1].SpanContext.SpanID() {
		t.Errorf("spans %+v, want atoll.create as a child of the command", all)
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
}

// Opening a provider touches nothing but the state directory.
func TestProviders(t *testing.T) {
	for _, e := range Providers() {
		t.Run(e.Name, func(t *testing.T) {
			dir := t.TempDir()
			cfg, err := Load(Source{Env: []string{"HOME=" + dir, "ATOLL_PROVIDER=" + e.Name, "ATOLL_STATE_DIR=" + t.TempDir()}})
			if err != nil {
				t.Fatal(err)
			}
			p, err := Open(cfg, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if got := p.Info().Name; got != e.Name {
				t.Errorf("the provider is called %q, want %q", got, e.Name)
			}
			if made, _ := filepath.Glob(filepath.Join(dir, "*")); len(made) > 0 {
				t.Errorf("it made %q in the home directory", made)
			}
		})
	}
}
