package pool

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// A Reporter is a Provider that may have pools.
type Reporter interface {
	Pools(ctx context.Context) (Report, error)
}

// ReportOf returns the report of p; an empty one if p is no Reporter.
func ReportOf(ctx context.Context, p atoll.Provider) (Report, error) {
	if k, ok := atoll.As[Reporter](p); ok {
		return k.Pools(ctx)
	}
	return Report{}, nil
}

// StockName is the name of the pool that stands for the stock of a provider: see Options.Stock.
const StockName = "default"

// addStock adds the stock of the provider to r, and returns the number of creations that did not match it.
func (l *Provider) addStock(r *Report) (unmatched int64) {
	if l.opts.Stock == nil {
		return 0
	}
	stock := l.opts.Stock()
	one := Pool{
		Name: StockName, Provider: l.scope, Spec: stock.Spec, Min: stock.Want, Warm: stock.Ready, Booting: stock.Booting, Stock: []string{}, Problem: stock.Problem,
		Stats: Stats{WarmHits: stock.Hits, ColdMisses: stock.Misses, Created: stock.Created, Destroyed: stock.Removed}.Add(Stats{}),
	}
	r.Pools, r.Total = append(r.Pools, one), r.Total.Add(one.Stats)
	return stock.Unmatched
}

// A Report has the state of pools, and their statistics since the program started.
type Report struct {
	Pools []Pool `json:"pools"` // by provider and name
	Total Stats  `json:"total"` // of all pools
	// Unmatched counts creations whose spec matched no pool.
	Unmatched int64 `json:"unmatched"`
}

// A Pool is the state of warm sandboxes of one Spec.
type Pool struct {
	Name     string     `json:"name"`              // as in the configuration
	Provider string     `json:"provider"`          // the provider of its sandboxes
	Spec     atoll.Spec `json:"spec"`              // spec of its sandboxes
	Min      int        `json:"min"`               // the desired number of warm sandboxes, now
	Warm     int        `json:"warm"`              // the number of warm sandboxes
	Booting  int        `json:"booting"`           // the number of sandboxes in creation
	Stock    []string   `json:"stock"`             // the IDs of warm sandboxes, oldest first; no call accepts them; those of a provider's stock have none yet
	Problem  string     `json:"problem,omitempty"` // the error of the last creation
	Stats
}

// Stats are the counters of a pool.
type Stats struct {
	WarmHits   int64   `json:"warm_hits"`   // creations that got a warm sandbox
	ColdMisses int64   `json:"cold_misses"` // creations that found the pool empty
	Created    int64   `json:"created"`     // sandboxes that the pool created
	Destroyed  int64   `json:"destroyed"`   // sandboxes that the pool removed unclaimed
	HitRate    float64 `json:"hit_rate"`    // percentage of hits among hits and misses; 0 without any
}

// Add returns the sum of s and other.
func (s Stats) Add(other Stats) Stats {
	sum := Stats{
		WarmHits: s.WarmHits + other.WarmHits, ColdMisses: s.ColdMisses + other.ColdMisses,
		Created: s.Created + other.Created, Destroyed: s.Destroyed + other.Destroyed,
	}
	if all := sum.WarmHits + sum.ColdMisses; all > 0 {
		sum.HitRate = 100 * float64(sum.WarmHits) / float64(all)
	}
	return sum
}

// Add returns the sum of r and other.
func (r Report) Add(other Report) Report {
	r.Pools = append(r.Pools[:len(r.Pools):len(r.Pools)], other.Pools...)
	r.Total = r.Total.Add(other.Total)
	r.Unmatched += other.Unmatched
	return r
}
