package trace_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/trace"
)

func TestHooks(t *testing.T) {
	trace.Hooks(trace.Options{})("OnMessage", time.Second, nil) // is not counted, and does no harm
	metrics := newMetrics(t)
	observe := trace.Hooks(trace.Options{MeterProvider: metrics})
	observe("OnMessage", 3*time.Millisecond, nil)
	observe("OnMessage", 3*time.Second, atoll.Errorf("OnMessage", "talk", atoll.ErrUnavailable, "secret"))
	observe("OnColdStart", time.Second, context.Canceled)
	text := scrape(t, metrics)
	for _, want := range []string{
		`atoll_hooks_total{hook="OnMessage",kind="ok"} 1`,
		`atoll_hooks_total{hook="OnMessage",kind="unavailable"} 1`,
		`atoll_hooks_total{hook="OnColdStart",kind="canceled"} 1`,
		`atoll_hook_seconds_count{hook="OnMessage"} 2`,
		`atoll_hook_seconds_bucket{hook="OnMessage",le="0.005"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if strings.Contains(text, "secret") || strings.Contains(text, "talk") {
		t.Error("an error's text is a label")
	}
}
