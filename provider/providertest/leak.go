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

// checkLeaks lists the resources of this process, and registers a cleanup that checks that no more
// exist: goroutines, descriptors, children and their descendants, mounts, and the objects of option
// Leaks. It finds a namespace with the process, mount or descriptor that keeps it alive. The cleanup
// waits a little for resources that go away by themselves. The test should have the returned census
// record processes while many exist.
func checkLeaks(t *testing.T, cfg *config) *census {
	t.Helper()
	goroutines := goleak.IgnoreCurrent()
	c, err := newCensus()
	if err != nil {
		t.Fatalf("listing processes: %v", err)
	}
	listings := []listing{{"descriptor", listDescriptors}, {"child process", listChildren}, {"process", c.listAlive}, {"mount", listMounts}}
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
	return c
}

// CheckLeaks is the suite's check for leaks, for tests outside of the suite. Call it first. At the end
// of the test, no resources may be left.
func CheckLeaks(t *testing.T, opts ...Option) {
	t.Helper()
	checkLeaks(t, newConfig(opts))
}

// A listing lists the current resources of one kind.
type listing struct {
	what string
	list func() ([]string, error)
}

// listNames returns the names of the resources, or fails the test.
func (l listing) listNames(t *testing.T) []string {
	t.Helper()
	names, err := l.list()
	if err != nil {
		t.Fatalf("listing each %s: %v", l.what, err)
	}
	return names
}

// checkNoneAdded returns an error if there are resources that before does not have.
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

// listDescriptors returns the targets of the open descriptors. Those of sockets and pipes contain
// unique numbers.
func listDescriptors() ([]string, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.HasPrefix(target, "/proc/") && strings.HasSuffix(target, "/fd") {
			continue // closed meanwhile, or the descriptor of this listing
		}
		if target == "anon_inode:[eventpoll]" || target == "anon_inode:[eventfd]" {
			continue // of the Go runtime's poller, which opens them at its first use
		}
		names = append(names, target)
	}
	return names, nil
}

// listChildren returns the child processes of this process, including zombies.
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

// listMounts returns this process's mounts, except those with the source "atoll-test", which other test
// programs make at the same time.
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

// checkNoSandbox checks that p lists no sandbox.
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
