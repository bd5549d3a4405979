package trace_test

import (
	"context"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/trace"
)

// A poolProvider has two pools.
type poolProvider struct{ atoll.ProviderLayer }

func (poolProvider) Pools(context.Context) (pool.Report, error) {
	return pool.Report{Pools: []pool.Pool{
		{Name: "small", Provider: "mock", Warm: 3, Stats: pool.Stats{WarmHits: 7, ColdMisses: 2, Created: 11, Destroyed: 1}},
		{Name: "big", Provider: "mock"},
	}}, nil
}

func TestMetricsOfPools(t *testing.T) {
	metrics := newMetrics(t)
	p := trace.New(poolProvider{atoll.ProviderLayer{Provider: leaf(t)}}, trace.Options{MeterProvider: metrics})
	text := scrape(t, metrics)
	for _, want := range []string{
		`atoll_pool_sandboxes{pool="small",provider="mock"} 3`,
		`atoll_pool_sandboxes{pool="big",provider="mock"} 0`,
		`atoll_pool_total{event="hit",pool="small",provider="mock"} 7`,
		`atoll_pool_total{event="miss",pool="small",provider="mock"} 2`,
		`atoll_pool_total{event="created",pool="small",provider="mock"} 11`,
		`atoll_pool_total{event="destroyed",pool="small",provider="mock"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if strings.Contains(scrape(t, metrics), "atoll_pool_sandboxes{") {
		t.Error("pools are counted after Close")
	}
}
