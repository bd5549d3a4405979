//go:build linux

package keeper

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

func TestReadMap(t *testing.T) {
	for name, test := range map[string]struct {
		text  string
		want  []idRange // those that this process may give to others
		all   bool
		count int
	}{
		"machine":      {"         0          0 4294967295\n", []idRange{{0, 0, 1<<32 - 1}}, true, 1<<32 - 1},
		"one user":     {"         0       1000          1\n", []idRange{{0, 0, 1}}, false, 1},
		"subordinates": {"         0       1000          1\n         1     100000      65536\n", []idRange{{0, 0, 1}, {1, 1, 65536}}, false, 65537},
		"a container":  {"         0     231072      65536\n", []idRange{{0, 0, 65536}}, false, 65536},
		"none":         {"", nil, false, 0},
	} {
		file := filepath.Join(t.TempDir(), "map")
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readMap(file)
		if err != nil || !slices.Equal(got, test.want) || hasAll(got) != test.all || countIDs(got) != test.count {
			t.Errorf("%s: %v, %v, all %v, count %d", name, got, err, hasAll(got), countIDs(got))
		}
	}
	file := filepath.Join(t.TempDir(), "map")
	if err := os.WriteFile(file, []byte("0 zero 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, file + "-missing"} {
		if _, err := readMap(name); err == nil {
			t.Errorf("%s has no map, and no error", name)
		}
	}
}

func TestFormatMap(t *testing.T) {
	if got, want := string(formatMap([]idRange{{0, 1000, 1}, {1, 100000, 65536}})), "0 1000 1\n1 100000 65536\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// No two sandboxes have the same ids, and a range is free again after its sandbox.
func TestClaimRange(t *testing.T) {
	claimed := map[int]bool{}
	for range 50 {
		n, claim, err := claimRange()
		if err != nil {
			t.Fatal(err)
		}
		defer claim.Close()
		if claimed[n] || n%rangeSize != 0 || n < firstRange*rangeSize || n+rangeSize > (firstRange+ranges)*rangeSize {
			t.Errorf("claimed %#x", n)
		}
		claimed[n] = true
	}
}

func TestParseStat(t *testing.T) {
	rest := " 0 0 0 0 20 0 1 0 12345 4096 100" // the times, the priority, and the start
	for name, test := range map[string]struct {
		stat string
		want processInfo
		ok   bool
	}{
		"plain":        {"7 (sh) S 1 7 5 0 -1 4194304 0 0 0 0" + rest, processInfo{7, 1, 5, "12345"}, true},
		"odd name":     {"7 (a) R 9 (b) S 1 7 5 0 -1 4194304 0 0 0 0" + rest, processInfo{7, 1, 5, "12345"}, true},
		"zombie":       {"7 (sh) Z 1 7 5 0 -1 4194304 0 0 0 0" + rest, processInfo{}, false},
		"dead":         {"7 (sh) X 1 7 5 0 -1 4194304 0 0 0 0" + rest, processInfo{}, false},
		"cut short":    {"7 (sh) S 1 7", processInfo{}, false},
		"has ended":    {"", processInfo{}, false},
		"no numbers":   {"7 (sh) S x y z 0 -1 4194304 0 0 0 0" + rest, processInfo{7, 0, 0, "12345"}, false},
		"without name": {"7 S 1 7 5 0", processInfo{}, false},
	} {
		if got, ok := parseStat(7, []byte(test.stat)); got != test.want || ok != test.ok {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := parseStat(os.Getpid(), own); !ok || p.ppid != os.Getppid() {
		t.Errorf("this process: %+v, %v", p, ok)
	}
}

func TestHostName(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef"
	for name, want := range map[string]string{"": "0123456789ab", "web": "web", "a_b": "a-b"} {
		if got := hostName(&atoll.Spec{ID: id, Name: name}); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestCPUList(t *testing.T) {
	for n, want := range map[int]string{1: "0\n", 2: "0-1\n", 64: "0-63\n"} {
		if got := cpuList(n); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

// The processors of a sandbox are some of those that this process may use.
func TestChooseCPUs(t *testing.T) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	if got := chooseCPUs(all.Count()); got != nil {
		t.Errorf("all processors: %v, want no choice", got)
	}
	for n := 1; n < all.Count(); n++ {
		some := chooseCPUs(n)
		if some.Count() != n {
			t.Errorf("%d processors, want %d", some.Count(), n)
		}
		for i := range len(all) * 64 {
			if some.IsSet(i) && !all.IsSet(i) {
				t.Errorf("processor %d is not for this process", i)
			}
		}
	}
}

func TestSharedMemory(t *testing.T) {
	for limit, want := range map[atoll.Bytes]uint64{1 << 30: 512 << 20, 256 << 20: 128 << 20, 16 << 20: 32 << 20} {
		if got := sharedMemory(limit); got != want {
			t.Errorf("limit %s: %d, want %d", limit, got, want)
		}
	}
	if got := sharedMemory(0); got < 64<<20 {
		t.Errorf("without a limit: %d", got)
	}
}
