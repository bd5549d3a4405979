package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fakeHierarchy makes a directory that looks like a cgroup file system: not every machine
// has a real one of version 2 with controllers.
func fakeHierarchy(t *testing.T, files map[string]string) Hierarchy {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Open(root)
}

func readFile(t *testing.T, h Hierarchy, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var v2Files = map[string]string{
	"cgroup.controllers": "cpu io memory pids\n", "cgroup.subtree_control": "",
	"box/memory.swap.max": "max", "box/memory.current": "4096\n", "box/cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
	"box/memory.events": "low 0\noom 1\noom_kill 1\n",
}

var v1Files = map[string]string{
	"memory/tasks": "", "cpu/tasks": "", "cpuacct/tasks": "",
	"memory/box/memory.usage_in_bytes": "8192\n", "cpuacct/box/cpuacct.usage": "2000000000\n",
	"memory/box/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
}

// A memory limit allows no additional swap. On v1 the limit of both together must never be
// less than that of memory alone, or the kernel refuses it.
func TestSwap(t *testing.T) {
	memory, both := "memory/box/memory.limit_in_bytes", "memory/box/memory.memsw.limit_in_bytes"
	for name, test := range map[string]struct {
		before string
		want   []string // in this order
	}{
		"first":   {"9223372036854771712", []string{memory, both}},
		"less":    {"1073741824", []string{memory, both}},
		"more":    {"1048576", []string{both, memory}},
		"unknown": {"", []string{memory}},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{memory: test.before}
			if test.before != "" {
				files[both] = test.before
			}
			h := fakeHierarchy(t, files)
			var order []string
			h.write = func(file, value string) error {
				order = append(order, strings.TrimPrefix(file, h.root+"/"))
				return writeFile(file, value)
			}
			if err := h.Group("/box").Limit(Limits{Memory: 64 << 20}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(order, test.want) {
				t.Errorf("wrote %q, want %q", order, test.want)
			}
			for _, file := range order {
				if got := readFile(t, h, file); got != "67108864" {
					t.Errorf("%s = %q", file, got)
				}
			}
		})
	}
}

func TestLimits(t *testing.T) {
	limits := Limits{Memory: 1 << 30, CPUs: 1.5}
	for name, test := range map[string]struct {
		files map[string]string
		want  map[string]string
	}{
		"v2": {v2Files, map[string]string{"box/memory.max": "1073741824", "box/memory.swap.max": "0", "box/cpu.max": "150000 100000", "cgroup.subtree_control": "+pids"}},
		"v1": {v1Files, map[string]string{"memory/box/memory.limit_in_bytes": "1073741824", "cpu/box/cpu.cfs_quota_us": "150000"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := fakeHierarchy(t, test.files)
			if err := h.Group("/box").Make(limits); err != nil {
				t.Fatal(err)
			}
			for file, want := range test.want {
				if got := readFile(t, h, file); got != want {
					t.Errorf("%s = %q, want %q", file, got, want)
				}
			}
		})
	}
}

// A group with a reserve uses it for a moment only: v2 slows it down, unless the group says otherwise.
func TestReserve(t *testing.T) {
	limits := Limits{Memory: 256 << 20, Reserve: 128 << 20}
	for name, test := range map[string]struct {
		files map[string]string
		want  map[string]string
		fast  map[string]string // without throttle
	}{
		"v2": {v2Files, map[string]string{"box/memory.max": "402653184", "box/memory.high": "268435456"}, map[string]string{"box/memory.high": "max"}},
		"v1": {v1Files, map[string]string{"memory/box/memory.limit_in_bytes": "402653184"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := fakeHierarchy(t, test.files)
			g := h.Group("/box")
			check := func(want map[string]string) {
				t.Helper()
				for file, want := range want {
					if got := readFile(t, h, file); got != want {
						t.Errorf("%s = %q, want %q", file, got, want)
					}
				}
			}
			if err := g.Make(limits); err != nil {
				t.Fatal(err)
			}
			check(test.want)
			if err := g.Throttle(limits, false); err != nil {
				t.Fatal(err)
			}
			check(test.fast)
			if err := g.Throttle(limits, true); err != nil {
				t.Fatal(err)
			}
			check(test.want)
		})
	}
}

// FixedMemory leaves out what the kernel can take back.
func TestFixedMemory(t *testing.T) {
	stat := "anon 1\ninactive_file 1024\nactive_file 512\n"
	for name, test := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"v2":              {map[string]string{"cgroup.controllers": "memory", "box/memory.current": "4096\n", "box/memory.stat": stat + "slab_reclaimable 256\nslab_unreclaimable 128\n"}, 4096 - 1536 - 256},
		"v2 without slab": {map[string]string{"cgroup.controllers": "memory", "box/memory.current": "4096\n", "box/memory.stat": stat}, 4096 - 1536},
		"v1":              {map[string]string{"memory/box/memory.usage_in_bytes": "4096\n", "memory/box/memory.stat": stat, "memory/box/memory.kmem.usage_in_bytes": "256\n"}, 4096 - 1536 - 256},
		"v1 without kmem": {map[string]string{"memory/box/memory.usage_in_bytes": "4096\n", "memory/box/memory.stat": stat}, 4096 - 1536},
		"less than freed": {map[string]string{"memory/box/memory.usage_in_bytes": "1024\n", "memory/box/memory.stat": stat}, 0}, // the kernel counts one after the other
	} {
		if got := fakeHierarchy(t, test.files).Group("/box").FixedMemory(); got != test.want {
			t.Errorf("%s: FixedMemory() = %d, want %d", name, got, test.want)
		}
	}
	if got := (Group{}).FixedMemory(); got != 0 {
		t.Errorf("FixedMemory() of the zero group = %d", got)
	}
}

// The kernel reports that a process of the group takes memory.
func TestWatchMemory(t *testing.T) {
	h := Open(Root)
	if b := h.FindBase(); b.Path != "/" || !b.Memory {
		t.Skip("no writable cgroup on this machine")
	}
	g := h.Group("/atoll-test-" + t.Name())
	limits := Limits{Memory: 64 << 20, Reserve: 64 << 20}
	if err := g.Make(limits); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	w, err := g.WatchMemory(limits)
	if err != nil {
		t.Fatal(err)
	}
	for !w.Ready() {
		time.Sleep(time.Millisecond)
	}
	eat := exec.Command("sh", "-c", "read go; head -c 80000000 /dev/zero | tail; read stop")
	stdin, err := eat.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := eat.Start(); err != nil {
		t.Fatal(err)
	}
	if err := g.Join(eat.Process.Pid); err != nil {
		t.Error(err)
	}
	if _, err := stdin.Write([]byte("go\n")); err != nil {
		t.Error(err)
	}
	if err := w.Wait(); err != nil {
		t.Errorf("Wait: %v", err)
	}
	stdin.Close()
	_ = eat.Wait() // it was only to take memory
	ended := make(chan error)
	go func() {
		for err == nil {
			err = w.Wait()
		}
		ended <- err
	}()
	if err := w.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	<-ended
	w, err = g.WatchMemory(limits)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil { // before it is ready
		t.Errorf("Close: %v", err)
	}
	if err := w.Wait(); !errors.Is(err, os.ErrClosed) || !w.Ready() {
		t.Errorf("Wait after Close: %v, ready %t", err, w.Ready())
	}
}

func TestJoin(t *testing.T) {
	h := fakeHierarchy(t, v1Files)
	g := h.Group("/box")
	if err := g.Make(Limits{}); err != nil {
		t.Fatal(err)
	}
	if err := g.Join(123); err != nil {
		t.Fatal(err)
	}
	for _, controller := range v1Controllers {
		if got := readFile(t, h, controller+"/box/cgroup.procs"); got != "123" {
			t.Errorf("%s: joined %q, want 123", controller, got)
		}
	}
	if dir, err := g.Dir(); dir != nil || err != nil {
		t.Errorf("Dir() = %v, %v on v1, want nil", dir, err)
	}
}

func TestUsage(t *testing.T) {
	for name, test := range map[string]struct {
		files  map[string]string
		memory int64
		cpu    time.Duration
		oom    bool
	}{
		"v2": {v2Files, 4096, 1500 * time.Millisecond, true},
		"v1": {v1Files, 8192, 2 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := fakeHierarchy(t, test.files).Group("/box")
			memory, cpu, ok := g.Usage()
			if memory != test.memory || cpu != test.cpu || !ok {
				t.Errorf("Usage() = %d, %v, %v, want %d, %v, true", memory, cpu, ok, test.memory, test.cpu)
			}
			if got := g.OOMKilled(); got != test.oom {
				t.Errorf("OOMKilled() = %v, want %v", got, test.oom)
			}
		})
	}
}

func TestZeroGroup(t *testing.T) {
	g := Open(Root).Group("")
	if err := g.Make(Limits{Memory: 1}); err != nil {
		t.Error(err)
	}
	if err := g.Join(os.Getpid()); err != nil {
		t.Error(err)
	}
	if _, _, ok := g.Usage(); ok || g.OOMKilled() {
		t.Error("the zero group measures something")
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}

func TestProtect(t *testing.T) {
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	}()
	file := fmt.Sprintf("/proc/%d/oom_score_adj", sleep.Process.Pid)
	want := "-500\n"
	if os.WriteFile(file, []byte("-500"), 0) != nil { // not allowed here
		own, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want = string(own)
	} else if err := os.WriteFile(file, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	if err := Protect(sleep.Process.Pid); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(file); string(got) != want || err != nil {
		t.Errorf("oom_score_adj = %q, %v, want %q", got, err, want)
	}
}

// TestRealGroup limits this machine's own cgroups, if it may.
func TestRealGroup(t *testing.T) {
	h := Open(Root)
	if b := h.FindBase(); b.Path != "/" || !b.Memory {
		t.Skip("no writable cgroup on this machine")
	}
	g := h.Group("/atoll-test-" + strings.ReplaceAll(t.Name(), "/", "-"))
	if err := g.Make(Limits{Memory: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	for _, memory := range []int64{128 << 20, 32 << 20} { // more, then less
		if err := g.Limit(Limits{Memory: memory}); err != nil {
			t.Error(err)
		}
		for _, s := range g.memorySettings(memory, 0) {
			if got, err := os.ReadFile(s.file); err != nil || strings.TrimSpace(string(got)) != s.value {
				t.Errorf("%s = %q, %v, want %s", s.file, got, err, s.value)
			}
		}
	}
	if _, _, ok := g.Usage(); !ok {
		t.Error("a group that was made has no usage")
	}
	if g.OOMKilled() {
		t.Error("an empty group has been killed")
	}
}
