//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
)

// The rows of the comparison of pools.
const (
	poolHit       = "a sandbox of the pool"
	poolCold      = "one that is made for it"
	poolHitFirst  = "a sandbox of the pool, to first byte"
	poolColdFirst = "one that is made for it, to first byte"
)

// poolGoals are the goals of a creation that finds a warm sandbox.
var poolGoals = []goal{
	{row: poolHit, millis: 5},
	{row: poolHit, than: poolCold, most: 1.0 / 4},
	{row: poolHitFirst, than: poolColdFirst, most: 1.0 / 2},
}

// measurePool compares a creation that finds a warm sandbox with one that does not.
func (b *bench) measurePool(ctx context.Context) (err error) {
	file := filepath.Join(b.dir, "pool.yaml")
	text := fmt.Sprintf("pool:\n  bench:\n    size: 3\n    image: %q\n", "dir:"+b.root)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	s, err := startServer(ctx, b, "pool", "ATOLL_CONFIG="+file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stopServer()) }()
	create := func(first bool, env ...string) func(context.Context) (time.Duration, error) {
		return func(ctx context.Context) (time.Duration, error) {
			return s.createStocked(ctx, &atoll.Spec{Image: "dir:" + b.root, Env: env}, first)
		}
	}
	err = b.compareMethods(ctx, "a sandbox is created, with a pool and without", poolGoals, []method{
		{poolHit, create(false)}, {poolCold, create(false, "POOL=none")},
		{poolHitFirst, create(true)}, {poolColdFirst, create(true, "POOL=none")},
	})
	report, statsErr := pool.ReportOf(ctx, s)
	if want := int64(2 * (b.rounds + 1)); err == nil && statsErr == nil && (report.Total.WarmHits != want || report.Unmatched != want) {
		err = fmt.Errorf("want %d warm hits and %d unmatched creations, got %+v", want, want, report)
	}
	return errors.Join(err, statsErr)
}

// createStocked waits until the pools are full. It returns the time in which the server then creates a
// sandbox and, if first is set, runs a command in it. It removes the sandbox.
func (s *server) createStocked(ctx context.Context, spec *atoll.Spec, first bool) (time.Duration, error) {
	if err := waitUntil(ctx, func() error { return s.checkStocked(ctx) }); err != nil {
		return 0, err
	}
	start := time.Now()
	sb, err := s.Create(ctx, spec)
	if err != nil {
		return 0, err
	}
	if first {
		_, err = atoll.Output(ctx, sb, &atoll.Command{Args: echoArgs})
	}
	took := time.Since(start)
	return took, errors.Join(err, sb.Remove(ctx, atoll.RemoveVolumes()))
}

// checkStocked returns an error if a pool lacks sandboxes.
func (s *server) checkStocked(ctx context.Context) error {
	report, err := pool.ReportOf(ctx, s)
	for _, p := range report.Pools {
		if p.Warm < p.Min || p.Booting > 0 {
			return fmt.Errorf("pool %s has %d of %d sandboxes: %s", p.Name, p.Warm, p.Min, p.Problem)
		}
	}
	return err
}
