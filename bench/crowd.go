//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed46cd37a8/atoll"
)

// measureFleet creates many sandboxes at once, and measures times, memory and leftovers.
func (b *bench) measureFleet(ctx context.Context) (err error) {
	fmt.Fprintf(os.Stderr, "%d sandboxes at once\n", b.fleet)
	s, err := startServer(ctx, b, "crowd", "ATOLL_WARM=false")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stopServer()) }()
	bare, bareLast, err := b.measureBare(ctx)
	if err != nil {
		return err
	}
	before, err := listHelpers()
	if err != nil {
		return err
	}
	_, free, err := readMemory()
	if err != nil {
		return err
	}
	watch := watchMemory(ctx)
	boxes, times, errs := b.createFleet(ctx, s)
	least := watch()
	slices.Sort(times)
	goal := fmt.Sprintf("%d", b.fleet)
	b.table.addFact(fact{crowdTitle, fmt.Sprintf("%d created at once: ready", b.fleet), strconv.Itoa(len(times)), goal, len(times) == b.fleet})
	if len(times) == 0 {
		return errors.Join(errs...)
	}
	b.table.addFact(fact{title: crowdTitle, name: "ready after: p50", value: formatMillis(times.valueAt(0.50))})
	b.table.addFact(fact{title: crowdTitle, name: "ready after: p95", value: formatMillis(times.valueAt(0.95))})
	b.table.addFact(fact{title: crowdTitle, name: "ready after: p99", value: formatMillis(times.valueAt(0.99))})
	last := float64(times.valueAt(1)) / float64(bare)
	b.table.addFact(fact{crowdTitle, "the last ready, in creations of bare runsc", fmt.Sprintf("%.0f", last), strconv.Itoa(lastGoal), last <= lastGoal})
	b.table.addFact(fact{title: crowdTitle, name: "for comparison: as many of bare runsc, the last", value: fmt.Sprintf("%.0f", float64(bareLast)/float64(bare))})
	time.Sleep(settleTime)
	alive, err := listHelpers()
	if err != nil {
		return err
	}
	pss, n := sumPSS(alive, before)
	b.table.addFact(fact{title: crowdTitle, name: "processes on the host", value: strconv.Itoa(n)})
	b.table.addFact(fact{title: crowdTitle, name: "their memory (PSS), all alive", value: formatMiB(pss)})
	each := pss / int64(len(times))
	b.table.addFact(fact{crowdTitle, "the same, for each sandbox", formatMiB(each), formatMiB(idleGoal), each <= idleGoal})
	b.table.addFact(fact{title: crowdTitle, name: "peak of the whole machine's use", value: formatMiB(free - least)})

	if err := b.measureServer(ctx, s); err != nil {
		return err
	}
	start := time.Now()
	forEachSandbox(boxes, func(sb atoll.Sandbox) { errs = append(errs, sb.Remove(ctx, atoll.RemoveVolumes())) })
	b.table.addFact(fact{title: crowdTitle, name: "all removed after", value: formatMillis(time.Since(start))})
	left := b.listLeftovers(ctx, s, boxes, before)
	b.table.addFact(fact{crowdTitle, "left behind", strconv.Itoa(len(left)), "0", len(left) == 0})
	for _, l := range left {
		fmt.Fprintln(os.Stderr, "left behind:", l)
	}
	return errors.Join(errs...)
}

const (
	lastGoal = 48       // creations of bare runsc, until the last of a hundred is ready
	idleGoal = 15 << 20 // bytes of an idle sandbox

	settleTime = 70 * time.Second // after which an idle sandbox has given back what only its start needed
)

// measureBare returns the median time of a creation by bare runsc, and the time until the last of a whole fleet at once.
func (b *bench) measureBare(ctx context.Context) (median, last time.Duration, err error) {
	p, closer, err := b.runscPeers(ctx)
	if closer != nil {
		defer func() { err = errors.Join(err, closer()) }()
	}
	if err != nil {
		return 0, 0, err
	}
	return timeTogether(ctx, p.create[0], 7, b.fleet)
}

// timeTogether returns the median time of runs of a method, one after the other, and the time until the last of n at once has ended.
func timeTogether(ctx context.Context, m method, runs, n int) (median, last time.Duration, err error) {
	var times sample
	for range runs {
		took, err := m.do(ctx)
		if err != nil {
			return 0, 0, err
		}
		times = append(times, took)
	}
	slices.Sort(times)
	all, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for range n {
		all.Go(func() error {
			_, err := m.do(ctx)
			return err
		})
	}
	err = all.Wait()
	return times.medianTime(), time.Since(start), err
}

const (
	listGoal   = 20 * time.Millisecond // of a list of all sandboxes, p99
	serverGoal = 150 << 20             // bytes of the server's memory
)

// measureServer measures what many sandboxes cost their server: the time of a list, and memory.
func (b *bench) measureServer(ctx context.Context, s *server) error {
	var times sample
	for range 200 {
		start := time.Now()
		if _, err := s.List(ctx, atoll.Filter{}); err != nil {
			return err
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return err
	}
	slow, rss := times.valueAt(0.99), readField(status, "VmRSS:")
	b.table.addFact(fact{crowdTitle, "list of all: p99", formatMillis(slow), formatMillis(listGoal), slow <= listGoal})
	b.table.addFact(fact{crowdTitle, "memory of the server (RSS)", formatMiB(rss), formatMiB(serverGoal), rss <= serverGoal})
	return nil
}

// createFleet creates the sandboxes at once and runs a command in each. The times are from the common
// start to the end of the command.
func (b *bench) createFleet(ctx context.Context, s *server) (boxes []atoll.Sandbox, times sample, errs []error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	start := time.Now()
	for range b.fleet {
		all.Go(func() {
			sb, err := s.Create(ctx, &atoll.Spec{Image: "dir:" + b.root})
			if err == nil {
				_, err = atoll.Output(ctx, sb, &atoll.Command{Args: echoArgs})
			}
			mu.Lock()
			defer mu.Unlock()
			if sb != nil {
				boxes = append(boxes, sb)
			}
			if err != nil {
				errs = append(errs, err)
				return
			}
			times = append(times, time.Since(start))
		})
	}
	all.Wait()
	return boxes, times, errs
}

// forEachSandbox calls f for every sandbox, one after the other.
func forEachSandbox(boxes []atoll.Sandbox, f func(atoll.Sandbox)) {
	for _, sb := range boxes {
		f(sb)
	}
}

// listLeftovers names processes, cgroups and files that are left of removed sandboxes.
func (b *bench) listLeftovers(ctx context.Context, s *server, boxes []atoll.Sandbox, before map[int]string) (left []string) {
	_ = waitUntil(ctx, func() error { // only the result of the last attempt counts
		left = nil
		now, err := listHelpers()
		if err != nil {
			return err
		}
		for pid, name := range now {
			// The server has one warm helper, which is a new process by now.
			if _, old := before[pid]; !old && len(now) > len(before) {
				left = append(left, fmt.Sprintf("process %d %s", pid, name))
			}
		}
		for _, sb := range boxes {
			for _, pattern := range []string{"/sys/fs/cgroup/*/atoll-", "/sys/fs/cgroup/atoll-", s.state + "/*/*/*", b.dir + "/run/atoll/*/"} {
				found, _ := filepath.Glob(pattern + sb.ID() + "*")
				left = append(left, found...)
			}
		}
		if len(left) > 0 {
			return errors.New("not yet")
		}
		return nil
	})
	return left
}

// listHelpers returns the processes that run sandboxes: their names by PID.
func listHelpers() (map[int]string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	found := map[int]string{}
	for _, dir := range dirs {
		cmdline, err := os.ReadFile(dir + "/cmdline")
		if err != nil {
			continue // it has ended
		}
		name, _, _ := bytes.Cut(cmdline, []byte{0})
		if n := string(name); strings.HasPrefix(n, "atoll-") || strings.HasPrefix(n, "runsc-") {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				return nil, err
			}
			found[pid] = n
		}
	}
	return found, nil
}

// sumPSS adds up the proportional share of memory, in bytes, of the processes in now that are not in
// before. n is their number.
func sumPSS(now, before map[int]string) (total int64, n int) {
	for pid := range now {
		if _, old := before[pid]; old {
			continue
		}
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue // it has ended
		}
		n++
		total += readField(data, "Pss:")
	}
	return total, n
}

// readMemory returns the machine's total and available memory, in bytes.
func readMemory() (total, available int64, err error) {
	data, err := os.ReadFile("/proc/meminfo")
	return readField(data, "MemTotal:"), readField(data, "MemAvailable:"), err
}

// readField returns the bytes of a line "Name:  123 kB", or 0.
func readField(data []byte, name string) int64 {
	for line := range bytes.Lines(data) {
		if f := strings.Fields(string(line)); len(f) > 1 && f[0] == name {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// watchMemory samples the available memory. It returns a function that stops and returns the least of
// it, in bytes.
func watchMemory(ctx context.Context) func() int64 {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan int64)
	go func() {
		_, least, _ := readMemory()
		for {
			select {
			case <-ctx.Done():
				done <- least
				return
			case <-time.After(50 * time.Millisecond):
				if _, now, err := readMemory(); err == nil {
					least = min(least, now)
				}
			}
		}
	}()
	return func() int64 {
		cancel()
		return <-done
	}
}

// formatMiB formats bytes as MiB.
func formatMiB(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
