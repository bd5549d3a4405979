package stack

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/layer/trace"
)

// Each provider has its own limits, and its own label in metrics.
func TestOpenSeveral(t *testing.T) {
	metrics, err := trace.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	defer metrics.Close()
	p, err := buildConfig(t, &config.Config{
		StateDir: t.TempDir(), Provider: "mock", Providers: []string{"local"}, ProjectProviders: []string{"team=local"},
	}).Open(Options{Metrics: metrics})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, spec := range []atoll.Spec{{}, {Project: "team"}, {Provider: "local"}} {
		sb, err := p.Create(t.Context(), &spec)
		if err != nil {
			t.Fatal(err)
		}
		defer sb.Remove(t.Context(), atoll.RemoveVolumes())
	}
	rec := httptest.NewRecorder()
	metrics.ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	text, err := io.ReadAll(rec.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`atoll_sandboxes{provider="mock",state="running"} 1`, `atoll_sandboxes{provider="local",state="running"} 2`,
		`atoll_calls_total{kind="ok",op="create",provider="local"} 2`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the metrics do not have %s:\n%s", want, text)
		}
	}
}
