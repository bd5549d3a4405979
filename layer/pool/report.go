package pool

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// A Reporter is a Provider that may keep sandboxes running ahead of need.
type Reporter interface {
	Pools(ctx context.Context) (Report, error)
}

// ReportOf says what p keeps running ahead of need. A Provider that is no Reporter
// keeps nothing.
func ReportOf(ctx context.Context, p atoll.Provider) (Report, error) {
	if k, ok := atoll.As[Reporter](p); ok {
		return k.Pools(ctx)
	}
	return Report{}, nil
}

// A Report says what sandboxes are kept running ahead of need, and what use
// they were since the program that keeps them began.
type Report struct {
	Pools []Pool `json:"pools"` // by provider and name
	Total Stats  `json:"total"`
	// Unmatched counts creations that asked for what no pool has.
	Unmatched int64 `json:"unmatched"`
}

// A Pool keeps sandboxes of one Spec running until they are asked for.
type Pool struct {
	Name     string     `json:"name"`
	Provider string     `json:"provider"`
	Spec     atoll.Spec `json:"spec"`
	Min      int        `json:"min"`               // how many there are to be
	Warm     int        `json:"warm"`              // how many there are
	Booting  int        `json:"booting"`           // how many are being made
	Stock    []string   `json:"stock"`             // the ids of those that there are, oldest first: nobody can use them by these
	Problem  string     `json:"problem,omitempty"` // why the last one could not be made
	Stats
}

// Stats count.
type Stats struct {
	WarmHits   int64   `json:"warm_hits"`   // creations that got a sandbox of the pool
	ColdMisses int64   `json:"cold_misses"` // those that found it empty
	Created    int64   `json:"created"`     // sandboxes that were made for the pool
	Destroyed  int64   `json:"destroyed"`   // those of them that nobody got
	HitRate    float64 `json:"hit_rate"`    // percent of hits among hits and misses; 0 without any
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

// Add returns r with all that other says.
func (r Report) Add(other Report) Report {
	r.Pools = append(r.Pools[:len(r.Pools):len(r.Pools)], other.Pools...)
	r.Total = r.Total.Add(other.Total)
	r.Unmatched += other.Unmatched
	return r
}
