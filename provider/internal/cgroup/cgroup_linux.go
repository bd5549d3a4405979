package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/retry"
)

// v1Controllers lists the hierarchies of v1 that a group uses.
var v1Controllers = []string{"memory", "cpu", "cpuacct"}

// A Hierarchy is a mounted cgroup file system.
type Hierarchy struct {
	root string
	v2   bool

	// Tests replace these to imitate a kernel.
	write     func(file, value string) error
	writable  func(path string) bool
	own       func() (map[string]string, error) // this thread's groups by controller; "" is that of v2
	delegated func(dir string) bool
}

// Open returns the hierarchy that is mounted at root: Root, except in tests.
func Open(root string) Hierarchy {
	_, err := os.Stat(filepath.Join(root, "cgroup.controllers"))
	return Hierarchy{root, err == nil, writeFile, isWritable, ownGroups, isDelegated}
}

func writeFile(file, value string) error { return os.WriteFile(file, []byte(value), 0o644) }

func isWritable(path string) bool { return unix.Access(path, unix.W_OK) == nil }

// A Group is the cgroup of one sandbox. The zero Group has no effect.
type Group struct {
	h    Hierarchy
	path string // relative to the hierarchies' roots
}

// Group returns the group at path, made or not, whose parent is a Base; "" gives the zero Group.
func (h Hierarchy) Group(path string) Group {
	if path == "" {
		return Group{}
	}
	return Group{h, path}
}

// groupDirs returns the group's directories: one on v2, one for each controller on v1.
func (g Group) groupDirs() []string {
	if g.path == "" {
		return nil
	}
	if g.h.v2 {
		return []string{filepath.Join(g.h.root, g.path)}
	}
	return g.dirsOf(v1Controllers)
}

// dirsOf returns the group's directories for those controllers of v1 for which this process may make them.
func (g Group) dirsOf(controllers []string) (dirs []string) {
	for _, name := range controllers {
		if dir := filepath.Join(g.h.root, name, g.path); g.h.writable(filepath.Dir(dir)) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// Make makes the group with its limits. If it fails, it removes what it made.
func (g Group) Make(l Limits) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Remove())
		}
	}()
	if g.path != "" && g.h.v2 {
		for _, controller := range []string{"memory", "cpu", "pids"} { // systemd may have disabled some since FindBase
			g.h.enableController(filepath.Join(g.h.root, filepath.Dir(g.path)), controller)
		}
	}
	for _, dir := range g.groupDirs() {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return g.Limit(l)
}

// Limit changes the limits of a group that was made. A limit of 0 leaves the present one.
func (g Group) Limit(l Limits) error {
	for _, s := range g.limitSettings(l) {
		if err := g.h.write(s.file, s.value); err != nil {
			return fmt.Errorf("limit: %w", err)
		}
	}
	return nil
}

// cpuPeriod is the period of the CPU quota, in microseconds: the kernel's default.
const cpuPeriod = 100_000

// A setting is a file that holds a limit, and the value to write to it.
type setting struct{ file, value string }

// limitSettings returns the settings for the limits, in the order in which to write them.
func (g Group) limitSettings(l Limits) []setting {
	var set []setting
	if l.Memory > 0 && g.path != "" {
		set = g.memorySettings(l.Memory, l.Reserve)
	}
	if l.CPUs > 0 && g.path != "" {
		quota := strconv.FormatInt(int64(math.Ceil(l.CPUs*cpuPeriod)), 10)
		if g.h.v2 {
			set = append(set, setting{g.filePath("", "cpu.max"), quota + " " + strconv.Itoa(cpuPeriod)})
		} else {
			set = append(set, setting{g.filePath("cpu", "cpu.cfs_quota_us"), quota})
		}
	}
	return set
}

// memorySettings returns the settings for a memory limit with a reserve. They leave no swap on top
// of the memory, if the kernel accounts for swap at all. On v2 the kernel slows down processes that
// use the reserve, see Throttle.
func (g Group) memorySettings(limit, reserve int64) []setting {
	high := "max"
	if reserve > 0 {
		high = strconv.FormatInt(limit, 10)
		limit += reserve
	}
	memory := strconv.FormatInt(limit, 10)
	if g.h.v2 {
		set := []setting{{g.filePath("", "memory.max"), memory}, {g.filePath("", "memory.high"), high}}
		if swap := g.filePath("", "memory.swap.max"); pathExists(swap) {
			set = append(set, setting{swap, "0"})
		}
		return set
	}
	set := []setting{{g.filePath("memory", "memory.limit_in_bytes"), memory}}
	if both := g.filePath("memory", "memory.memsw.limit_in_bytes"); pathExists(both) { // memory and swap together
		set = append(set, setting{both, memory})
		if readNumber(both) < limit { // it must never be less than the limit of memory alone
			slices.Reverse(set)
		}
	}
	return set
}

// filePath returns the path of one of the group's files; it uses controller on v1 only.
func (g Group) filePath(controller, name string) string {
	if g.h.v2 {
		return filepath.Join(g.h.root, g.path, name)
	}
	return filepath.Join(g.h.root, controller, g.path, name)
}

func pathExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Dir opens the directory that a process can be cloned into; nil on v1, where the process
// must Join.
func (g Group) Dir() (*os.File, error) {
	if g.path == "" || !g.h.v2 {
		return nil, nil
	}
	return os.Open(filepath.Join(g.h.root, g.path))
}

// Join moves the process into the group.
func (g Group) Join(pid int) error {
	for _, dir := range g.groupDirs() {
		if err := g.h.write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

// Leave moves this process out of the group, so that it can be removed: to the group's base, or to the leaf there.
func (g Group) Leave() error {
	pid := strconv.Itoa(os.Getpid())
	for _, dir := range g.groupDirs() {
		base := filepath.Dir(dir)
		err := g.h.write(filepath.Join(base, "cgroup.procs"), pid)
		if errors.Is(err, unix.EBUSY) {
			err = g.h.joinLeaf(base, pid)
		}
		if err != nil {
			return fmt.Errorf("leave cgroup: %w", err)
		}
	}
	return nil
}

// removeTimeout is the time that Remove waits for the last processes, which stay in their
// group until they have given back their memory, at the pace of the group's CPU quota.
const removeTimeout = 5 * time.Second

// Remove removes the group. All its processes must have ended or been killed, even if they are frozen. It returns
// nil if there is no such group.
func (g Group) Remove() error {
	_ = g.Thaw()
	var errs []error
	for _, dir := range slices.Concat(g.insideDirs(), g.groupDirs()) {
		errs = append(errs, removeDir(dir))
	}
	if g.path != "" && g.h.v2 {
		_ = unix.Rmdir(filepath.Join(g.h.root, filepath.Dir(g.path), leafName)) // fails while there are processes in it
	}
	return errors.Join(errs...)
}

func removeDir(dir string) error {
	policy := retry.Policy{
		First: time.Millisecond, Max: 50 * time.Millisecond, Timeout: removeTimeout,
		If: func(err error) bool { return errors.Is(err, unix.EBUSY) },
	}
	err := policy.Do(context.Background(), func() error { return unix.Rmdir(dir) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// supervisorOOMScore is the oom_score_adj of a supervisor, in thousandths of the available
// memory. Together with the 500 of a sentry it suffices: whatever the two use, the kernel
// kills the sentry first.
const supervisorOOMScore = -500

// Protect makes the kernel kill other processes before this one when memory is used up. It
// needs CAP_SYS_RESOURCE, without which it does nothing. Children that the process starts
// later inherit it.
func Protect(pid int) error {
	err := writeFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), strconv.Itoa(supervisorOOMScore))
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// OOMKilled reports whether the kernel has killed a process of the group for lack of
// memory.
func (g Group) OOMKilled() bool { return g.OOMKills() > 0 }

// OOMKills returns the number of processes of the group that the kernel has killed for lack of
// memory.
func (g Group) OOMKills() (n int64) {
	for _, dir := range g.groupDirs() {
		for _, file := range []string{"memory.events", "memory.oom_control"} {
			n = max(n, readKey(filepath.Join(dir, file), "oom_kill"))
		}
	}
	return n
}

// Usage returns the memory, in bytes, and the CPU time that the group uses; ok is false if the group lacks one of the controllers.
func (g Group) Usage() (memory int64, cpu time.Duration, ok bool) {
	switch {
	case g.path == "":
		return 0, 0, false
	case g.h.v2:
		used := g.filePath("", "memory.current")
		return readNumber(used), time.Duration(readKey(g.filePath("", "cpu.stat"), "usage_usec")) * time.Microsecond, pathExists(used)
	}
	used, spent := g.filePath("memory", "memory.usage_in_bytes"), g.filePath("cpuacct", "cpuacct.usage")
	return readNumber(used), time.Duration(readNumber(spent)), pathExists(used) && pathExists(spent)
}

// readNumber reads a file that holds one number; 0 if it cannot.
func readNumber(path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n
}

// readKey reads a "key number" line of a file; 0 if there is none.
func readKey(path, key string) int64 {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	for scan := bufio.NewScanner(f); scan.Scan(); {
		k, v, _ := strings.Cut(scan.Text(), " ")
		if n, err := strconv.ParseInt(v, 10, 64); k == key && err == nil {
			return n
		}
	}
	return 0
}
