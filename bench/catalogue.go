//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// fewSandboxes is the number of sandboxes on a server with few.
const fewSandboxes = 10

// maxSlowdown limits the ratio of a call's time with many sandboxes to that with few.
const maxSlowdown = 1.5

// measureLookups compares the time to find a sandbox among few and among many.
func (b *bench) measureLookups(ctx context.Context) (err error) {
	const get, byName, list = "get by id", "get by name", "list all, for each sandbox"
	methods := func(s *server, n int) (find, all []method) {
		id := ""
		find = []method{
			{get, func(ctx context.Context) (time.Duration, error) {
				if id == "" {
					sb, err := atoll.Resolve(ctx, s, "", "box-0")
					if err != nil {
						return 0, err
					}
					id = sb.ID()
				}
				start := time.Now()
				sb, err := s.Get(ctx, id)
				if err == nil {
					_, err = sb.Status(ctx)
				}
				return time.Since(start), err
			}},
			{byName, timeCall(func(ctx context.Context) error {
				_, err := atoll.Resolve(ctx, s, "", "box-1")
				return err
			})},
		}
		all = []method{ // not in turn with the others, which would pay for its garbage
			{list, func(ctx context.Context) (time.Duration, error) {
				start := time.Now()
				all, err := s.List(ctx, atoll.Filter{})
				if err == nil && len(all) != n {
					err = fmt.Errorf("listed %d of %d", len(all), n)
				}
				return time.Since(start) / time.Duration(n), err
			}},
		}
		return find, all
	}
	s, err := startServer(ctx, b, "catalogue")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stopServer()) }()
	var results [][]row
	made := 0
	for _, n := range []int{fewSandboxes, b.known} {
		for ; made < n; made++ {
			if _, err := s.Create(ctx, &atoll.Spec{Name: fmt.Sprintf("box-%d", made), Image: "dir:" + b.root, NoStart: true}); err != nil {
				return err
			}
		}
		find, all := methods(s, n)
		title := fmt.Sprintf("among %d sandboxes", n)
		if err := errors.Join(b.compareMethods(ctx, title, nil, find), b.compareMethods(ctx, title, nil, all)); err != nil {
			return err
		}
		last := len(b.table.comparisons) - 2
		both := b.table.comparisons[last:]
		results = append(results, slices.Concat(both[0].rows, both[1].rows))
		b.table.comparisons = b.table.comparisons[:last]
	}
	for i, r := range results[0] {
		little, lot := r.times.medianTime(), results[1][i].times.medianTime()
		ratio := float64(lot) / float64(little)
		b.table.addFact(fact{
			crowdTitle, fmt.Sprintf("%s: among %d, and among %d", r.name, fewSandboxes, b.known), fmt.Sprintf("%s, %s", formatMillis(little), formatMillis(lot)),
			fmt.Sprintf("<= %.1f x", maxSlowdown), ratio <= maxSlowdown,
		})
	}
	return nil
}
