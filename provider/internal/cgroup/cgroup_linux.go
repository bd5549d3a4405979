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
	root  string
	v2    bool
	write func(file, value string) error // tests replace it to imitate a kernel
}

// Open returns the hierarchy that is mounted at root: Root, except in tests.
func Open(root string) Hierarchy {
	_, err := os.Stat(filepath.Join(root, "cgroup.controllers"))
	return Hierarchy{root, err == nil, writeFile}
}

func writeFile(file, value string) error { return os.WriteFile(file, []byte(value), 0o644) }

// Can reports whether this process may limit memory and CPUs. On v2 it enables the missing
// controllers, as Make would: this is the only way to find out whether the kernel refuses
// that, for instance because the processes of a container are in the root that it sees.
func (h Hierarchy) Can() (memory, cpu bool) {
	if !h.v2 {
		return isWritable(filepath.Join(h.root, "memory")), isWritable(filepath.Join(h.root, "cpu"))
	}
	if !isWritable(h.root) {
		return false, false
	}
	return h.enableController("memory"), h.enableController("cpu")
}

// enableController reports whether the groups of v2 have the controller, and enables it if
// necessary.
func (h Hierarchy) enableController(controller string) bool {
	has := func(file string) bool {
		data, err := os.ReadFile(filepath.Join(h.root, file))
		return err == nil && slices.Contains(strings.Fields(string(data)), controller)
	}
	if has("cgroup.subtree_control") {
		return true
	}
	return has("cgroup.controllers") && h.write(filepath.Join(h.root, "cgroup.subtree_control"), "+"+controller) == nil
}

func isWritable(path string) bool { return unix.Access(path, unix.W_OK) == nil }

// A Group is the cgroup of one sandbox. The zero Group has no effect.
type Group struct {
	h    Hierarchy
	path string // relative to the hierarchies' roots
}

// Group returns the group at path, made or not; "" gives the zero Group.
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
	var dirs []string
	for _, name := range v1Controllers {
		if isWritable(filepath.Join(g.h.root, name)) {
			dirs = append(dirs, filepath.Join(g.h.root, name, g.path))
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
		if err := g.enableControllers(); err != nil {
			return err
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

// enableControllers enables the controllers for the group, from the root down.
func (g Group) enableControllers() error {
	dir := g.h.root
	for _, name := range strings.Split(strings.Trim(g.path, "/"), "/") {
		for _, controller := range []string{"+memory", "+cpu", "+pids"} {
			err := g.h.write(filepath.Join(dir, "cgroup.subtree_control"), controller)
			if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) { // EINVAL: the machine has no such controller
				return fmt.Errorf("enable %s: %w", controller[1:], err)
			}
		}
		dir = filepath.Join(dir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
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

// Leave moves this process to the root of the hierarchies, so that its group can be
// removed.
func (g Group) Leave() error {
	if g.path == "" {
		return nil
	}
	return Group{g.h, "."}.Join(os.Getpid())
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

// Usage returns the memory, in bytes, and the CPU time that the group uses; ok is false for
// the zero Group.
func (g Group) Usage() (memory int64, cpu time.Duration, ok bool) {
	switch {
	case g.path == "":
		return 0, 0, false
	case g.h.v2:
		return readNumber(g.filePath("", "memory.current")), time.Duration(readKey(g.filePath("", "cpu.stat"), "usage_usec")) * time.Microsecond, true
	}
	return readNumber(g.filePath("memory", "memory.usage_in_bytes")), time.Duration(readNumber(g.filePath("cpuacct", "cpuacct.usage"))), true
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
