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
)

// A row whose ratio to the other binary is above regressionRatio is a regression. One above suspectRatio counts
// as slower.
const (
	regressionRatio = 1.10
	suspectRatio    = 1.05
)

// A candidate is one of two binaries, with its servers and a sandbox.
type candidate struct {
	*bench
	name    string // in rows
	main    *server
	pool    *server
	live    atoll.Sandbox
	closers []func() error
}

// A headline is a measurement that compares two binaries.
type headline struct {
	title  string
	rounds int // for each requested round
	do     func(c *candidate, ctx context.Context) (time.Duration, error)
}

var headlines = []headline{
	{"atoll version", 2, func(c *candidate, ctx context.Context) (time.Duration, error) {
		return untilEnd(c.atollCommand(ctx, c.main.state, "version"))
	}},
	{"create to first byte, API", 1, func(c *candidate, ctx context.Context) (time.Duration, error) {
		return c.main.createToFirstByte(ctx, &atoll.Spec{Image: "dir:" + c.root})
	}},
	{"create to first byte, command line alone", 1, func(c *candidate, ctx context.Context) (time.Duration, error) {
		return untilFirst(c.atollCommand(ctx, filepath.Join(c.dir, c.name+"-alone"), "run", "--image", "dir:"+c.root, "--", "echo", "x"), nil)
	}},
	{"command in a live sandbox, API", 4, func(c *candidate, ctx context.Context) (time.Duration, error) {
		start := time.Now()
		_, err := atoll.Output(ctx, c.live, &atoll.Command{Args: echoArgs})
		return time.Since(start), err
	}},
	{"command in a live sandbox, command line", 2, func(c *candidate, ctx context.Context) (time.Duration, error) {
		return untilEnd(c.atollCommand(ctx, c.main.state, "exec", c.live.ID(), "--", "echo", "x"))
	}},
	{"a file of 64 MiB into the sandbox", 1, func(c *candidate, ctx context.Context) (time.Duration, error) {
		start := time.Now()
		err := sendFile(ctx, c.live, filepath.Join(c.dir, "source"), "sent")
		return time.Since(start), errors.Join(err, atoll.Files(c.live).Remove(ctx, "sent", false))
	}},
	{"a file of 64 MiB out of the sandbox", 1, func(c *candidate, ctx context.Context) (time.Duration, error) {
		target := filepath.Join(c.dir, "target")
		start := time.Now()
		err := fetchFile(ctx, c.live, "file", target)
		return time.Since(start), errors.Join(err, os.Remove(target))
	}},
	{"a sandbox of the pool", 1, func(c *candidate, ctx context.Context) (time.Duration, error) {
		took, err := c.pool.createStocked(ctx, &atoll.Spec{Image: "dir:" + c.root}, false)
		// The pool makes another sandbox now, which must not slow down the other candidate.
		return took, errors.Join(err, waitUntil(ctx, func() error { return c.pool.checkStocked(ctx) }))
	}},
	{"ten sandboxes at once", 1, (*candidate).createTen},
}

// runVersus measures the headlines with both binaries in turns, and prints a table with ratios. It
// returns an error if b.atoll has regressions.
func (b *bench) runVersus(ctx context.Context, base string) (err error) {
	if err := b.makeScratch(&b.atoll, &base); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if err := os.WriteFile(filepath.Join(b.dir, "source"), make([]byte, fileSize), 0o600); err != nil {
		return err
	}
	both := []*candidate{{bench: &bench{}, name: "base"}, {bench: &bench{}, name: "head"}}
	for i, program := range []string{base, b.atoll} {
		*both[i].bench = *b
		both[i].atoll = program
		defer func() { err = errors.Join(err, both[i].stopServers()) }()
		if err := both[i].startServers(ctx); err != nil {
			return fmt.Errorf("%s: %w", both[i].name, err)
		}
	}
	for _, h := range headlines {
		methods := make([]method, len(both))
		for i, c := range both {
			methods[i] = method{c.name, func(ctx context.Context) (time.Duration, error) { return h.do(c, ctx) }}
		}
		if err := b.compareRounds(ctx, h.rounds*b.rounds, h.title, nil, methods); err != nil {
			return err
		}
	}
	text, bad := b.table.compareBinaries()
	fmt.Printf("%s\n\n%s", describeMachine(ctx, both[1].version), text)
	if bad > 0 {
		return fmt.Errorf("%d rows are regressions", bad)
	}
	return nil
}

// compareBinaries returns a table with a row for each comparison of the two binaries, and the number of
// regressions.
func (t *table) compareBinaries() (text string, bad int) {
	text = "| | base | head | ratio | verdict |\n| --- | --: | --: | --: | --- |\n"
	for _, c := range t.comparisons {
		before, after := c.rows[0].times.medianTime(), c.rows[1].times.medianTime()
		ratio := float64(after) / float64(before)
		word := "ok"
		switch {
		case ratio > regressionRatio:
			word = "**regression**"
			bad++
		case ratio > suspectRatio:
			word = "slower"
		case ratio < 1/suspectRatio:
			word = "faster"
		}
		text += fmt.Sprintf("| %s | %s | %s | %.2f x | %s |\n", c.title, formatMillis(before), formatMillis(after), ratio, word)
	}
	return text, bad
}

// startServers starts the servers and creates a sandbox.
func (c *candidate) startServers(ctx context.Context) (err error) {
	if c.main, err = startServer(ctx, c.bench, c.name); err != nil {
		return err
	}
	c.closers = append(c.closers, c.main.stopServer)
	file := filepath.Join(c.dir, c.name+"-pool.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "pool:\n  bench:\n    size: 2\n    image: %q\n", "dir:"+c.root), 0o600); err != nil {
		return err
	}
	if c.pool, err = startServer(ctx, c.bench, c.name+"-pool", "ATOLL_CONFIG="+file); err != nil {
		return err
	}
	c.closers = append(c.closers, c.pool.stopServer)
	if c.live, err = c.main.Create(ctx, &atoll.Spec{Image: "dir:" + c.root}); err != nil {
		return err
	}
	return sendFile(ctx, c.live, filepath.Join(c.dir, "source"), "file")
}

// stopServers stops the servers, which removes the sandboxes.
func (c *candidate) stopServers() (err error) {
	for _, closer := range c.closers {
		err = errors.Join(err, closer())
	}
	return err
}

// createTen creates ten sandboxes at once, and returns the time until a command has ended in each.
func (c *candidate) createTen(ctx context.Context) (time.Duration, error) {
	fleet := *c.bench
	fleet.fleet = 10
	start := time.Now()
	boxes, _, errs := fleet.createFleet(ctx, c.main)
	took := time.Since(start)
	forEachSandbox(boxes, func(sb atoll.Sandbox) { errs = append(errs, sb.Remove(ctx, atoll.RemoveVolumes())) })
	return took, errors.Join(errs...)
}
