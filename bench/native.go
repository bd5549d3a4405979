//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// The rows of the provider native.
const (
	nativeTitle   = "Native: many at once"
	bareEcho      = "Linux, bare: echo"
	nativeAPI     = "native, API client and server"
	nativeReady   = "native, API client and server, a sandbox that was ready"
	nativeAlone   = "native, command line alone"
	gvisorReady   = "gvisor, API client and server, a sandbox that was ready"
	nativeSetting = "ATOLL_PROVIDER=native"
)

// The goals of the provider native.
var (
	nativeCreateGoals = []goal{
		{row: nativeReady, than: viaBwrap, most: 0.5},
		{row: nativeAlone, than: viaBwrap, most: 1},
	}
	nativeExecGoals = []goal{{row: nativeAPI, than: bareEcho, millis: 1}}
)

// measureNative compares the provider native with bubblewrap and with the bare machine.
func (b *bench) measureNative(ctx context.Context) error {
	bwrap, err := b.compareNative(ctx)
	if err != nil {
		return err
	}
	return b.measureNativeFleet(ctx, bwrap)
}

// compareNative measures single sandboxes and commands. It returns the method of bubblewrap, if that is installed.
func (b *bench) compareNative(ctx context.Context) (bwrap []method, err error) {
	server, err := startServer(ctx, b, "native", nativeSetting)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.stopServer()) }()
	other, err := startServer(ctx, b, "native-peer")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, other.stopServer()) }()
	live, err := server.Create(ctx, &atoll.Spec{Image: "dir:" + b.root})
	if err != nil {
		return nil, err
	}
	echo := filepath.Join(b.root, "bin", echoArgs[0])
	bare := func(ctx context.Context) (time.Duration, error) {
		return untilEnd(exec.CommandContext(ctx, echo, echoArgs[1:]...))
	}
	create := []method{
		{bareEcho, bare},
		{nativeAPI, func(ctx context.Context) (time.Duration, error) {
			return server.createToFirstByte(ctx, &atoll.Spec{Image: "dir:" + b.root})
		}},
		{nativeReady, server.createReady},
		{nativeAlone, func(ctx context.Context) (time.Duration, error) {
			args := append([]string{"run", "--provider", "native", "--image", "dir:" + b.root, "--"}, echoArgs...)
			return untilFirst(b.atollCommand(ctx, filepath.Join(b.dir, "native-alone"), args...), nil)
		}},
		{gvisorReady, other.createReady},
	}
	peers, closers, err := b.setUpPeers(ctx, b.bwrapPeers, b.podmanPeers, b.dockerPeers)
	defer func() {
		for _, c := range closers {
			err = errors.Join(err, c())
		}
	}()
	if err != nil {
		return nil, err
	}
	create = append(create, peers.create...)
	if err := b.compareMethods(ctx, "native: create to first byte", nativeCreateGoals, create); err != nil {
		return nil, err
	}
	command := []method{{bareEcho, bare}, {nativeAPI, func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		_, err := atoll.Output(ctx, live, &atoll.Command{Args: echoArgs})
		return time.Since(start), err
	}}}
	if err := b.compareMethods(ctx, "native: command in a live sandbox", nativeExecGoals, command); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(peers.create, func(m method) bool { return m.row != viaBwrap }), nil
}

// createReady creates a sandbox that the server has made ahead, up to the first byte of a command in it.
func (s *server) createReady(ctx context.Context) (time.Duration, error) {
	took, err := s.createStocked(ctx, &atoll.Spec{}, true)
	return took, errors.Join(err, waitUntil(ctx, func() error { return s.checkStocked(ctx) }))
}

// measureNativeFleet creates many sandboxes at once, and as many of bubblewrap.
func (b *bench) measureNativeFleet(ctx context.Context, bwrap []method) (err error) {
	s, err := startServer(ctx, b, "native-crowd", nativeSetting, "ATOLL_PROVIDERS=native", "ATOLL_WARM=false")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stopServer()) }()
	var one, all time.Duration
	if len(bwrap) > 0 { // first, so that the server has its warm helpers
		if one, all, err = timeTogether(ctx, bwrap[0], 15, b.fleet); err != nil {
			return err
		}
	}
	before, err := listHelpers()
	if err != nil {
		return err
	}
	boxes, times, errs := b.createFleet(ctx, s)
	slices.Sort(times)
	add := func(name, value, goal string, met bool) {
		b.table.addFact(fact{nativeTitle, name, value, goal, met})
	}
	add(fmt.Sprintf("%d created at once: ready", b.fleet), strconv.Itoa(len(times)), strconv.Itoa(b.fleet), len(times) == b.fleet)
	if len(times) == 0 {
		return errors.Join(errs...)
	}
	if one > 0 {
		last := float64(times.valueAt(1)) / float64(one)
		add("the last ready, in runs of bwrap", fmt.Sprintf("%.0f", last), strconv.Itoa(nativeLastGoal), last <= nativeLastGoal)
		b.table.addFact(fact{title: nativeTitle, name: "for comparison: as many of bwrap, the last", value: fmt.Sprintf("%.0f", float64(all)/float64(one))})
	}
	time.Sleep(settleTime)
	alive, err := listHelpers()
	if err != nil {
		return err
	}
	pss, _ := sumPSS(alive, before)
	each := pss / int64(len(times))
	add("memory of an idle sandbox (PSS)", formatMiB(each), formatMiB(nativeIdleGoal), each <= nativeIdleGoal)
	forEachSandbox(boxes, func(sb atoll.Sandbox) { errs = append(errs, sb.Remove(ctx, atoll.RemoveVolumes())) })
	left := b.listLeftovers(ctx, s, boxes, before)
	add("left behind", strconv.Itoa(len(left)), "0", len(left) == 0)
	for _, l := range left {
		fmt.Fprintln(os.Stderr, "left behind:", l)
	}
	return errors.Join(errs...)
}

const (
	nativeLastGoal = 45      // runs of bwrap, until the last of a hundred is ready
	nativeIdleGoal = 3 << 20 // bytes of an idle sandbox
)
