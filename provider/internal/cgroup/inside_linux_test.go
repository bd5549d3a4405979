package cgroup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

var (
	v2Inside = map[string]string{"cgroup.controllers": "memory pids\n", "cgroup.subtree_control": "", "box/pids.max": "max", "box/inside/cgroup.freeze": "0", "box/inside/cgroup.events": "populated 1\nfrozen 0\n"}
	v1Inside = map[string]string{"pids/box/pids.max": "max", "freezer/box/freezer.state": "THAWED\n", "memory/tasks": ""}
)

// recordWrites lets a fake hierarchy behave like the kernel: f is called for each write, and the writes are recorded, as "FILE VALUE".
func recordWrites(h *Hierarchy, f func(name, value string)) *[]string {
	var writes []string
	h.write = func(file, value string) error {
		name := strings.TrimPrefix(file, h.root+"/")
		writes = append(writes, name+" "+value)
		err := writeFile(file, value)
		if f != nil {
			f(name, value)
		}
		return err
	}
	return &writes
}

func TestMakeInside(t *testing.T) {
	for name, test := range map[string]struct {
		files     map[string]string
		processes int
		dirs      []string
		writes    []string
	}{
		"v2":           {v2Inside, 10, []string{"box/inside"}, []string{"box/pids.max 74"}}, // the supervisor has threads
		"v2 unlimited": {v2Inside, 0, []string{"box/inside"}, nil},
		"v1":           {v1Inside, 10, []string{"pids/box", "freezer/box"}, []string{"pids/box/pids.max 10"}},
		"v1 unlimited": {v1Inside, 0, []string{"pids/box", "freezer/box"}, nil},
		"v1 alone":     {v1Files, 10, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := fakeHierarchy(t, test.files)
			writes := recordWrites(&h, nil)
			i, err := h.Group("/box").MakeInside(test.processes)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(*writes, test.writes) {
				t.Errorf("wrote %q, want %q", *writes, test.writes)
			}
			var dirs []string
			for _, dir := range i.dirs {
				dirs = append(dirs, strings.TrimPrefix(dir, h.root+"/"))
				if info, err := os.Stat(dir); err != nil || !info.IsDir() {
					t.Errorf("%s: %v", dir, err)
				}
			}
			if !slices.Equal(dirs, test.dirs) {
				t.Errorf("directories %q, want %q", dirs, test.dirs)
			}
		})
	}
}

// On v2 a process is cloned into the group; on v1 it inherits the groups of the thread, which goes back to its own.
func TestCloneInside(t *testing.T) {
	own, err := ownGroups()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		files map[string]string
		dir   string
		want  []string
	}{
		"v2": {v2Inside, "box/inside", []string{"start"}},
		"v1": {v1Inside, "", []string{"pids/box/tasks 0", "freezer/box/tasks 0", "start", filepath.Join("freezer", own["freezer"], "tasks") + " 0", filepath.Join("pids", own["pids"], "tasks") + " 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := fakeHierarchy(t, test.files)
			for _, group := range []string{own["freezer"], own["pids"]} { // where the thread goes back to
				for _, name := range insideControllers {
					if err := os.MkdirAll(filepath.Join(h.root, name, group), 0o755); err != nil {
						t.Fatal(err)
					}
				}
			}
			writes := recordWrites(&h, nil)
			i, err := h.Group("/box").MakeInside(0)
			if err != nil {
				t.Fatal(err)
			}
			failed := errors.New("failed")
			err = i.Clone(func(dir *os.File) error {
				*writes = append(*writes, "start")
				if got := strings.TrimPrefix(nameOf(dir), h.root+"/"); got != test.dir {
					t.Errorf("directory %q, want %q", got, test.dir)
				}
				return failed
			})
			if !errors.Is(err, failed) || !slices.Equal(*writes, test.want) {
				t.Errorf("%v, wrote %q, want %q", err, *writes, test.want)
			}
		})
	}
}

func nameOf(f *os.File) string {
	if f == nil {
		return ""
	}
	return f.Name()
}

// Freeze waits until the kernel says that all stands still. If the caller gives up before, everything goes on.
func TestFreezeInside(t *testing.T) {
	for name, test := range map[string]struct {
		files        map[string]string
		on, off      string // the writes
		state, still string // the file that tells when all stands still, and its content then
	}{
		"v2": {v2Inside, "box/inside/cgroup.freeze 1", "box/inside/cgroup.freeze 0", "box/inside/cgroup.events", "populated 1\nfrozen 1\n"},
		"v1": {v1Inside, "freezer/box/freezer.state FROZEN", "freezer/box/freezer.state THAWED", "freezer/box/freezer.state", "FROZEN\n"},
	} {
		t.Run(name, func(t *testing.T) {
			h := fakeHierarchy(t, test.files)
			state := filepath.Join(h.root, test.state)
			moves := 0 // writes after which not all stands still
			writes := recordWrites(&h, func(_, value string) {
				text := "FREEZING\n"
				if moves--; moves < 0 {
					text = test.still
				}
				if err := os.WriteFile(state, []byte(text), 0o644); err != nil {
					t.Error(err)
				}
			})
			i, err := h.Group("/box").MakeInside(0)
			if err != nil {
				t.Fatal(err)
			}
			moves = math.MaxInt
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if err := i.Freeze(ctx); !errors.Is(err, context.DeadlineExceeded) || (*writes)[0] != test.on || (*writes)[len(*writes)-1] != test.off {
				t.Errorf("a freeze that takes too long: %v, wrote %q", err, *writes)
			}
			*writes, moves = nil, 2
			if err := i.Freeze(t.Context()); err != nil || !slices.Equal(*writes, []string{test.on, test.on, test.on}) {
				t.Errorf("freeze: %v, wrote %q", err, *writes)
			}
			if data, err := os.ReadFile(state); string(data) != test.still || err != nil {
				t.Errorf("Freeze returned while the state was %q, %v", data, err)
			}
			*writes = nil
			if err := i.Thaw(); err != nil || !slices.Equal(*writes, []string{test.off}) {
				t.Errorf("thaw: %v, wrote %q", err, *writes)
			}
			// A process that was killed while it is frozen ends only if the group is thawed before it is removed.
			*writes = nil
			_ = h.Group("/box").Remove() // fails: these directories have files
			if !slices.Equal(*writes, []string{test.off}) {
				t.Errorf("remove wrote %q", *writes)
			}
		})
	}
}

func TestInsideWithoutEffect(t *testing.T) {
	for name, g := range map[string]Group{"zero": {}, "v1 alone": fakeHierarchy(t, v1Files).Group("/box")} {
		i, err := g.MakeInside(10)
		if err != nil {
			t.Fatal(err)
		}
		ran := false
		if err := i.Clone(func(dir *os.File) error { ran = dir == nil; return nil }); err != nil || !ran {
			t.Errorf("%s: clone: %v, %v", name, ran, err)
		}
		if err := i.Freeze(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: freeze: %v", name, err)
		}
		if err := i.Thaw(); err != nil {
			t.Errorf("%s: thaw: %v", name, err)
		}
	}
}

// TestRealFreeze freezes a process in this machine's own cgroups, of each version that it has.
func TestRealFreeze(t *testing.T) {
	for name, root := range map[string]string{"v1, or v2": Root, "v2 beside v1": filepath.Join(Root, "unified")} {
		t.Run(name, func(t *testing.T) {
			h := Open(root)
			if !h.FindBase().Freeze {
				t.Skipf("no cgroup in %s can be made and frozen", root)
			}
			g := h.Group("/atoll-test-freeze")
			if err := g.Make(Limits{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := g.Remove(); err != nil {
					t.Error(err)
				}
			})
			i, err := g.MakeInside(0)
			if err != nil {
				t.Fatal(err)
			}
			runtime.LockOSThread() // Clone moves this thread, for a moment
			defer runtime.UnlockOSThread()
			kill, beat := startInside(t, i)
			if err := i.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
			for readBeat(t, beat, 10*time.Millisecond) { // what it wrote before
			}
			if readBeat(t, beat, 100*time.Millisecond) {
				t.Error("a frozen process goes on")
			}
			if err := i.Thaw(); err != nil {
				t.Fatal(err)
			}
			if !readBeat(t, beat, testenv.Scale(10*time.Second)) {
				t.Error("a thawed process does not go on")
			}
			if err := i.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
			kill()
			if err := g.Remove(); err != nil {
				t.Errorf("remove a group whose process was killed while it is frozen: %v", err)
			}
		})
	}
}

// startInside starts a process in i that writes all the time, and is killed when the test ends.
func startInside(t *testing.T, i *Inside) (kill func(), output *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	defer w.Close()
	cmd := exec.Command("sh", "-c", "while :; do echo; sleep 0.001; done")
	cmd.Stdout = w
	err = i.Clone(func(dir *os.File) error {
		if dir != nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
		}
		return cmd.Start()
	})
	if err != nil {
		t.Fatal(err)
	}
	kill = func() { _ = cmd.Process.Kill() } // it may have ended
	t.Cleanup(func() {
		kill()
		_ = i.Thaw() // fails if the group has been removed
		_ = cmd.Wait()
	})
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range i.dirs {
		name := strings.TrimPrefix(dir, i.g.h.root)
		if !i.g.h.v2 {
			name = i.g.path
		}
		if !strings.Contains(string(groups), name+"\n") {
			t.Errorf("the process is not in %s:\n%s", dir, groups)
		}
	}
	if own, err := os.ReadFile("/proc/thread-self/cgroup"); err != nil || strings.Contains(string(own), i.g.path) {
		t.Errorf("this thread stays in the group: %v\n%s", err, own)
	}
	if !readBeat(t, r, testenv.Scale(10*time.Second)) {
		t.Fatal("the process does not run")
	}
	return kill, r
}

// readBeat reports whether something comes within that time.
func readBeat(t *testing.T, r *os.File, within time.Duration) bool {
	t.Helper()
	if err := r.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	_, err := r.Read(make([]byte, 4096))
	return err == nil
}
