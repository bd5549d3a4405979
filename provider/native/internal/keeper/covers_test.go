//go:build linux

package keeper

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const machineMemory = `MemTotal:       24683828 kB
MemFree:        20459996 kB
MemAvailable:   24094636 kB
Buffers:          158980 kB
Cached:          3402636 kB
SwapTotal:       1048572 kB
AnonHugePages:         0 kB
HugePages_Total:       4
Hugepagesize:       2048 kB
DirectMap4k:      131072 kB
`

func TestRenderMemory(t *testing.T) {
	for name, test := range map[string]struct {
		limit, used int64
		want        string // the first three lines
	}{
		"free":       {256 << 20, 56 << 20, "MemTotal:         262144 kB\nMemFree:          204800 kB\nMemAvailable:     204800 kB\n"},
		"used up":    {256 << 20, 256 << 20, "MemTotal:         262144 kB\nMemFree:               0 kB\nMemAvailable:          0 kB\n"},
		"over it":    {16 << 20, 17 << 20, "MemTotal:          16384 kB\nMemFree:               0 kB\nMemAvailable:          0 kB\n"},
		"much of it": {1 << 40, 0, "MemTotal:       1073741824 kB\nMemFree:        1073741824 kB\nMemAvailable:   1073741824 kB\n"},
	} {
		rest := "Buffers:               0 kB\nCached:                0 kB\nSwapTotal:             0 kB\nAnonHugePages:         0 kB\n" +
			"HugePages_Total:       4\nHugepagesize:       2048 kB\nDirectMap4k:      131072 kB\n"
		if got := renderMemory(machineMemory, test.limit, test.used); got != test.want+rest {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}

func TestRenderProcessors(t *testing.T) {
	block := func(n, total string) string {
		return "processor\t: " + n + "\nmodel name\t: Some CPU: fast\nsiblings\t: " + total + "\ncpu cores\t: " + total + "\nflags\t\t: fpu processor\n\n"
	}
	machine := block("0", "4") + block("1", "4") + block("2", "4") + block("3", "4")
	for n, want := range map[int]string{
		1: block("0", "1"),
		2: block("0", "2") + block("1", "2"),
		4: machine,
		9: block("0", "9") + block("1", "9") + block("2", "9") + block("3", "9"), // it has no more
	} {
		if got := renderProcessors(machine, n); got != want {
			t.Errorf("%d processors:\n%s", n, got)
		}
	}
}

func TestRenderTimes(t *testing.T) {
	machine := "cpu  30 0 3 0\ncpu0 10 0 1 0\ncpu1 20 0 2 0\ncpu10 1 0 0 0\nintr 123 4 5\nctxt 99\nbtime 1764500000\nprocesses 7\nsoftirq 5 1 2\n"
	want := "cpu  30 0 3 0\ncpu0 10 0 1 0\nintr 0\nctxt 99\nbtime 1764500000\nprocesses 7\nsoftirq 0\n"
	if got := renderTimes(machine, 1); got != want {
		t.Errorf("one processor:\n%s", got)
	}
	if got := renderTimes(machine, 11); strings.Count(got, "cpu") != 4 {
		t.Errorf("all processors:\n%s", got)
	}
}

// The covers are of this machine's files, as they are.
func TestRenderFile(t *testing.T) {
	c := covers{memory: 64 << 20, cpus: 1}
	for name, want := range map[string]string{"meminfo": "MemTotal:          65536 kB\n", "cpuinfo": "processor\t: 0\n", "stat": "cpu "} {
		if got, err := c.renderFile(name, 0); err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
	for names, c := range map[string]covers{"": {}, "meminfo": {memory: 1}, "cpuinfo stat": {cpus: 1}, "meminfo cpuinfo stat": c} {
		if got := strings.Join(c.listNames(), " "); got != names {
			t.Errorf("%+v covers %q, want %q", c, got, names)
		}
	}
}

// A reader that has the file open sees the new content, longer or shorter.
func TestRewriteFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	var f *os.File
	for _, text := range []string{"first", "a longer text", "short"} {
		if err := rewriteFile(name, text); err != nil {
			t.Fatal(err)
		}
		if f == nil {
			var err error
			if f, err = os.Open(name); err != nil {
				t.Fatal(err)
			}
			defer f.Close()
		}
		buf := make([]byte, 100)
		if n, _ := f.ReadAt(buf, 0); string(buf[:n]) != text {
			t.Errorf("read %q, want %q", buf[:n], text)
		}
	}
}
