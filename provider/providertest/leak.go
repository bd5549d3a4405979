package providertest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed46cd37a8/atoll"
)

// checkLeaks notes what this process holds now, and registers a check that at
// the end of the test it holds no more: goroutines, descriptors, children and
// what descends from them, mounts, and what the provider's own listing names. A
// namespace lives in a process, a mount or a descriptor, and is found with it.
// What goes away by itself a little later is no leak. The census that it
// returns is for the test to take when there is much to be found.
func checkLeaks(t *testing.T, cfg *config) *census {
	t.Helper()
	goroutines := goleak.IgnoreCurrent()
	kin, err := newCensus()
	if err != nil {
		t.Fatalf("listing processes: %v", err)
	}
	listings := []listing{{"descriptor", listDescriptors}, {"child process", listChildren}, {"process", kin.listAlive}, {"mount", listMounts}}
	if cfg.leaks != nil {
		listings = append(listings, listing{"backend object", func() ([]string, error) { return cfg.leaks(t), nil }})
	}
	before := make([][]string, len(listings))
	for i, l := range listings {
		before[i] = l.listNames(t)
	}
	t.Cleanup(func() {
		if err := retryFor(cfg.shortLimit(), func() error { return goleak.Find(goroutines) }); err != nil {
			t.Errorf("goroutines are left: %v", err)
		}
		for i, l := range listings {
			err := retryFor(cfg.shortLimit(), func() error { return l.checkNoneAdded(t, before[i]) })
			if err != nil {
				t.Error(err)
			}
		}
	})
	return kin
}

// CheckLeaks is the suite's look for leaks, for tests that are not part of it:
// call it first, and at the end of the test nothing may be left.
func CheckLeaks(t *testing.T, opts ...Option) {
	t.Helper()
	checkLeaks(t, newConfig(opts))
}

// A listing names the things of one sort that exist now.
type listing struct {
	what string
	list func() ([]string, error)
}

func (l listing) listNames(t *testing.T) []string {
	t.Helper()
	names, err := l.list()
	if err != nil {
		t.Fatalf("listing each %s: %v", l.what, err)
	}
	return names
}

// checkNoneAdded is an error when there is something that was not there before.
func (l listing) checkNoneAdded(t *testing.T, before []string) error {
	t.Helper()
	left := map[string]int{}
	for _, name := range before {
		left[name]++
	}
	var added []string
	for _, name := range l.listNames(t) {
		if left[name]--; left[name] < 0 {
			added = append(added, name)
		}
	}
	if len(added) == 0 {
		return nil
	}
	slices.Sort(added)
	return fmt.Errorf("%d of these are left, each a %s: %s", len(added), l.what, strings.Join(added, ", "))
}

// listDescriptors lists the open ones by what they point to; sockets and pipes
// have numbers of their own in their names.
func listDescriptors() ([]string, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.HasPrefix(target, "/proc/") && strings.HasSuffix(target, "/fd") {
			continue // gone meanwhile, or the one of this listing
		}
		if target == "anon_inode:[eventpoll]" || target == "anon_inode:[eventfd]" {
			continue // the runtime's poller, made on its first use
		}
		names = append(names, target)
	}
	return names, nil
}

// listChildren lists the processes whose parent is this one, zombies too.
func listChildren() ([]string, error) {
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread is gone
		}
		for _, pid := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(pid); err == nil {
				if _, ok := readProcess(n); ok {
					names = append(names, describeProcess(n))
				}
			}
		}
	}
	return names, nil
}

// listMounts lists this process's mounts, but for those whose source is
// "atoll-test": other tests, in other programs at the same time, make them.
func listMounts() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(b)) {
		mount, what, _ := strings.Cut(line, " - ")
		if f := strings.Fields(mount); len(f) > 4 && !strings.Contains(what, " atoll-test ") {
			names = append(names, f[4])
		}
	}
	return names, nil
}

// checkNoSandbox checks that p knows no sandbox.
func checkNoSandbox(t *testing.T, h *harness, p atoll.Provider) {
	t.Helper()
	all, err := p.List(h.newContext(t), atoll.Filter{})
	if err != nil {
		t.Errorf("List: %v", err)
	}
	for _, st := range all {
		t.Errorf("sandbox %s (%s) is left", st.ID, st.State)
	}
}
