package config

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

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

// A recorder is a provider with the caps it is given, and no more than the Spec
// that Create was called with.
type recorder struct {
	atoll.Provider // nil: nothing else is called
	caps           atoll.Caps
	spec           atoll.Spec
}

func (r *recorder) Info() atoll.Info { return atoll.Info{Name: "recorder", Caps: r.caps} }

func (r *recorder) Create(_ context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	r.spec = *spec
	return nil, nil
}

// Sandboxes that name no limits get those of the configuration, where the
// provider can enforce them; others keep their own.
func TestLimits(t *testing.T) {
	all := atoll.Caps{MemoryLimit: true, CPULimit: true, ProcessLimit: true, DiskLimit: true, IdleStop: true}
	configured := Resources{Memory: 1 << 30, CPUs: 2, Processes: 99, Disk: 5 << 30}
	given := atoll.Resources{Memory: 1 << 30, CPUs: 2, Processes: 99, Disk: 5 << 30}
	own := atoll.Resources{Memory: 3 << 20, CPUs: 0.5, Processes: 7, Disk: 8 << 20}
	lifted := atoll.Resources{Memory: atoll.Unlimited, CPUs: atoll.Unlimited, Processes: atoll.Unlimited, Disk: atoll.Unlimited}
	hour, minute := atoll.Duration(time.Hour), atoll.Duration(time.Minute)
	for _, tt := range []struct {
		name string
		caps atoll.Caps
		cfg  Config
		spec atoll.Spec
		want atoll.Spec
	}{
		{"filled in", all, Config{Resources: configured, IdleStop: hour}, atoll.Spec{}, atoll.Spec{Resources: given, IdleStop: hour}},
		{"its own", all, Config{Resources: configured, IdleStop: hour}, atoll.Spec{Resources: own, IdleStop: minute}, atoll.Spec{Resources: own, IdleStop: minute}},
		{"lifted", all, Config{Resources: configured, IdleStop: hour}, atoll.Spec{Resources: lifted, IdleStop: atoll.Never}, atoll.Spec{Resources: lifted, IdleStop: atoll.Never}},
		{"each by itself", all, Config{Resources: configured, IdleStop: hour}, atoll.Spec{Resources: atoll.Resources{CPUs: 0.5}},
			atoll.Spec{Resources: atoll.Resources{Memory: 1 << 30, CPUs: 0.5, Processes: 99, Disk: 5 << 30}, IdleStop: hour}},
		{"none configured", all, Config{}, atoll.Spec{}, atoll.Spec{IdleStop: atoll.Never}},
		{"none enforced", atoll.Caps{}, Config{Resources: configured, IdleStop: hour}, atoll.Spec{}, atoll.Spec{}},
		{"one enforced", atoll.Caps{ProcessLimit: true}, Config{Resources: configured}, atoll.Spec{}, atoll.Spec{Resources: atoll.Resources{Processes: 99}}},
		{"its own though not enforced", atoll.Caps{}, Config{Resources: configured}, atoll.Spec{Resources: own}, atoll.Spec{Resources: own}}, // the provider refuses it
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, spec := &recorder{caps: tt.caps}, tt.spec
			if _, err := newLimits(r, &tt.cfg).Create(t.Context(), &spec); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(r.spec, tt.want) {
				t.Errorf("the provider was asked for %+v, want %+v", r.spec, tt.want)
			}
			if !reflect.DeepEqual(spec, tt.spec) {
				t.Errorf("Create changed the caller's Spec to %+v", spec)
			}
		})
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
