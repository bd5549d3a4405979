package stack

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/trace"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// The whole stack keeps the promises that a missing layer or a wrong order of layers can break. Each layer
// has its own test.
func TestConformance(t *testing.T) {
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		b := buildConfig(t, &config.Config{StateDir: t.TempDir(), Provider: "mock", Resources: config.Resources{Memory: 1 << 30}})
		p, err := b.Open(Options{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}, providertest.Only("create", "exec", "images", "watch", "errors", "caps", "registry"), providertest.PullableImage("docker.io/library/app:1"),
		providertest.Except("create/programs see the variables that layers add, and layers get back what they added", "package layer/system refuses it from callers"))
}

func TestOpenMetrics(t *testing.T) {
	metrics, err := trace.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	defer metrics.Close()
	var log bytes.Buffer
	p, err := buildConfig(t, &config.Config{StateDir: t.TempDir(), Provider: "mock"}).Open(Options{Calls: slog.New(slog.NewTextHandler(&log, nil)), Metrics: metrics})
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
		t.Errorf("the log does not have the sandbox:\n%s", log.String())
	}
}

func TestOpenTraces(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	traces := &trace.Traces{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))}
	p, err := buildConfig(t, &config.Config{StateDir: t.TempDir(), Provider: "mock"}).Open(Options{Traces: traces})
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

// Calls of the workspace layer, which is above the providers, are logged and traced.
func TestWorkspacesAreTraced(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	traces := &trace.Traces{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))}
	var log bytes.Buffer
	calls := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p, err := buildConfig(t, &config.Config{StateDir: t.TempDir(), Provider: "mock"}).Open(Options{Traces: traces, Calls: calls})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := workspace.Add(t.Context(), p, &workspace.Spec{Name: "w", Source: dir}, nil); err != nil {
		t.Fatal(err)
	}
	_, err = workspace.Update(t.Context(), p, "", "w", nil)
	if atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("UpdateWorkspace of a directory: %v", err)
	}
	if err := workspace.Remove(t.Context(), p, "", "w"); err != nil {
		t.Error(err)
	}
	_, err = workspace.Add(t.Context(), p, &workspace.Spec{Name: "w", Source: "https://u:letmein@example.com/x.git"}, nil)
	if atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("AddWorkspace with a password: %v", err)
	}
	var names []string
	for _, s := range spans.GetSpans() {
		if strings.Contains(s.Name, "_workspace") {
			names = append(names, s.Name)
		}
	}
	want := []string{"atoll.add_workspace", "atoll.update_workspace", "atoll.remove_workspace", "atoll.add_workspace"}
	if !slices.Equal(names, want) {
		t.Errorf("spans %q, want %q", names, want)
	}
	for _, op := range want {
		if op = strings.TrimPrefix(op, "atoll."); !strings.Contains(log.String(), "msg="+op) {
			t.Errorf("the log has no %s:\n%s", op, &log)
		}
	}
	if strings.Contains(log.String(), "letmein") {
		t.Errorf("the log has the password:\n%s", &log)
	}
}

// Opening a provider touches nothing but the state directory.
func TestProviders(t *testing.T) {
	testenv.Plugins(t, "kubernetes", "modal")
	for _, e := range config.Providers() {
		t.Run(e.Name, func(t *testing.T) {
			dir := t.TempDir()
			env := []string{"HOME=" + dir, "ATOLL_PROVIDER=" + e.Name, "ATOLL_STATE_DIR=" + t.TempDir()}
			if e.Name == "kubernetes" {
				env = append(env, "ATOLL_KUBERNETES_KUBECONFIG="+kubeconfig(t), "ATOLL_KUBERNETES_GUEST_IMAGE=example.com/atoll", "ATOLL_KUBERNETES_NETWORK_POLICY=ignored")
			}
			cfg, err := config.Load(config.Source{Env: env})
			if err != nil {
				t.Fatal(err)
			}
			p, err := buildConfig(t, cfg).Open(Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if got := p.Info().Name; got != e.Name {
				t.Errorf("the name of the provider is %q, want %q", got, e.Name)
			}
			if made, _ := filepath.Glob(filepath.Join(dir, "*")); len(made) > 0 {
				t.Errorf("Open created %q in the home directory", made)
			}
		})
	}
}

// kubeconfig returns the path of a file that names a missing cluster.
func kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u, namespace: agents}}], clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: u, user: {token: t}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpenWithoutAProvider(t *testing.T) {
	_, err := buildConfig(t, &config.Config{}).Open(Options{})
	if err == nil || !strings.Contains(err.Error(), "use one of gvisor, docker, ") {
		t.Errorf("Open without a provider: %v, want the names of providers", err)
	}
}
