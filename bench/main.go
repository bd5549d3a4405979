//go:build linux

// Command bench compares Atoll with other programs: bare runsc of the same gVisor, docker and
// bubblewrap, on the same root file system; rclone and s5cmd, with the same files and server; and
// bare QEMU. The programs take turns in one run, so that other load on the machine affects all of
// them alike. Bench prints a table with ratios and goals. With -o it also writes the table to a
// file, with the commit and the day. With -base it compares two binaries of Atoll and reports the
// rows that have become slower.
//
// scripts/bench and scripts/bench-compare install the other programs and run it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// A bench holds the settings and the results of one run.
type bench struct {
	dir     string // for temporary files
	atoll   string // path of the binary
	runsc   string
	rounds  int
	fleet   int    // number of sandboxes to create at once
	known   int    // number of sandboxes that a server has
	root    string // the root file system of all sandboxes
	version string // of gVisor in both binaries
	table   table
}

func main() {
	b := &bench{}
	flag.StringVar(&b.atoll, "atoll", "bin/atoll", "the binary of atoll")
	flag.StringVar(&b.runsc, "runsc", "bin/runsc", "the binary of bare runsc, from ./bench/runsc")
	flag.IntVar(&b.rounds, "n", 25, "`rounds` of each comparison")
	flag.IntVar(&b.fleet, "fleet", 100, "`sandboxes` at once")
	flag.IntVar(&b.known, "known", 1000, "`sandboxes` that a server knows")
	only := flag.String("only", "", "the `part` to measure: commands, tools, files, containers, pool, crowd, native, work, catalogue, sync, stream or machines; all unless given")
	out := flag.String("o", "", "`file` to write the results to")
	base := flag.String("base", "", "the `binary` of another atoll: compare the two, and measure nothing else")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := func() error { return b.runParts(ctx, *only, *out) }
	if *base != "" {
		run = func() error { return b.runVersus(ctx, *base) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// A part is a named group of measurements.
type part struct {
	name    string
	measure func(context.Context) error
}

// runParts measures the part with the name only, or all parts if it is empty. It prints the results
// and, if out is not empty, writes them to that file.
func (b *bench) runParts(ctx context.Context, only, out string) (err error) {
	parts := []part{{"commands", b.measureCommands}, {"tools", b.measureTools}, {"files", b.measureFiles}, {"containers", b.measureContainers}, {"pool", b.measurePool}, {"crowd", b.measureFleet}, {"native", b.measureNative}, {"work", b.measureWork}, {"catalogue", b.measureLookups}, {"sync", b.measureSync}, {"stream", b.measureStream}, {"machines", b.measureMachines}}
	if only != "" {
		parts = slices.DeleteFunc(parts, func(p part) bool { return p.name != only })
	}
	if len(parts) == 0 {
		return fmt.Errorf("no part %q: see -help", only)
	}
	commit := ""
	if out != "" {
		if commit, err = currentCommit(ctx); err != nil {
			return err
		}
		b.table.stamp = stampLine(commit, time.Now())
	}
	if err := b.makeScratch(&b.atoll, &b.runsc); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	for _, part := range parts {
		if err := part.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	text := b.table.formatMarkdown(describeMachine(ctx, b.version))
	fmt.Println(text)
	if out == "" {
		return nil
	}
	return writeResults(out, text, commit)
}

// makeScratch makes the temporary directory and the root file system of all sandboxes, and makes the
// paths absolute.
func (b *bench) makeScratch(paths ...*string) (err error) {
	for _, path := range paths {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	if b.dir, err = os.MkdirTemp("", "bench"); err != nil {
		return err
	}
	if b.root, err = makeBusyboxRoot(filepath.Join(b.dir, "root")); err != nil {
		return errors.Join(err, os.RemoveAll(b.dir))
	}
	return nil
}

// measureCommands compares the time from create to the first byte, and of commands in running
// sandboxes.
func (b *bench) measureCommands(ctx context.Context) (err error) {
	server, err := startServer(ctx, b, "commands")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stopServer()) }()
	atollPeers := func(ctx context.Context) (peerMethods, func() error, error) { return b.atollPeers(ctx, server) }
	peers, closers, err := b.setUpPeers(ctx, b.runscPeers, atollPeers, b.dockerPeers, b.bwrapPeers)
	defer func() {
		for _, c := range closers {
			err = errors.Join(err, c())
		}
	}()
	if err != nil {
		return err
	}
	if err := b.compareMethods(ctx, "create to first byte", createGoals, peers.create); err != nil {
		return err
	}
	return b.compareMethods(ctx, "command in a live sandbox", execGoals, peers.exec)
}

// The goals of the comparisons of commands.
var (
	createGoals = []goal{
		{row: viaAPI, than: bareRunsc, most: 0.9},
		{row: viaAlone, than: bareRunsc, most: 1.15},
		{row: viaWarm, than: bareRunsc, most: 0.18},
		{row: viaExec, than: bareRunsc, most: 0.14},
		{row: viaAPI, than: viaDocker, most: 1.0 / 4},
	}
	execGoals = []goal{
		{row: viaAPI, millis: 4},
		{row: viaAPI, than: viaDocker, most: 1.0 / 10},
	}
)

// The rows of the comparisons of commands.
const (
	viaAPI        = "atoll, API client and server"
	viaCLI        = "atoll, command line, server running"
	viaAlone      = "atoll, command line alone"
	viaWarm       = "atoll, API client and server, a sandbox that was ready"
	viaExec       = "for comparison: atoll exec in a live sandbox"
	bareRunsc     = "runsc, bare"
	largeRunsc    = "runsc, bare, its file in large pages"
	viaDocker     = "docker"
	viaDurable    = "atoll, API client and server, a durable command"
	viaShell      = "a shell inside, fork and exec"
	viaRunscShell = "a shell inside bare runsc, fork and exec"
	viaBwrap      = "bwrap (namespaces only)"
)
