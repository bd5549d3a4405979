package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// insideName is the name, on v2, of the group below a sandbox's that has only the processes inside.
const insideName = "inside"

// insideControllers lists the hierarchies of v1 that have only the processes inside.
var insideControllers = []string{"pids", "freezer"}

// reservedThreads is the number of threads, on v2, of the program that owns the sandbox, and which the limit of processes counts.
const reservedThreads = 64

// An Inside is the part of a Group that has only the processes inside a sandbox, without the program that owns it: they can be
// frozen. The zero Inside has no effect.
type Inside struct {
	g    Group
	dirs []string // on v2 one; on v1 one for each of insideControllers
}

// MakeInside makes the part of g for the processes inside, of which there may be that many; 0 means any number. Group.Remove removes
// it.
func (g Group) MakeInside(processes int) (*Inside, error) {
	i := &Inside{g: g}
	if g.path == "" {
		return i, nil
	}
	i.dirs = g.insideDirs()
	for _, dir := range i.dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if processes <= 0 {
		return i, nil
	}
	limit := filepath.Join(g.h.root, "pids", g.path, "pids.max")
	if g.h.v2 {
		limit = g.filePath("", "pids.max")
		processes += reservedThreads
	}
	if !pathExists(limit) {
		return i, nil
	}
	if err := g.h.write(limit, strconv.Itoa(processes)); err != nil {
		return nil, fmt.Errorf("limit: %w", err)
	}
	return i, nil
}

// insideDirs returns the directories of the part for the processes inside.
func (g Group) insideDirs() []string {
	if g.path == "" {
		return nil
	}
	if g.h.v2 {
		return []string{filepath.Join(g.h.root, g.path, insideName)}
	}
	return g.dirsOf(insideControllers)
}

// Clone calls start, which clones a process into the group: on v2 dir is the directory to clone it into; on v1, where dir is nil, the
// calling thread is in the group meanwhile. Call it on a locked thread.
func (i *Inside) Clone(start func(dir *os.File) error) (err error) {
	switch {
	case len(i.dirs) == 0:
		return start(nil)
	case i.g.h.v2:
		dir, err := os.Open(i.dirs[0])
		if err != nil {
			return err
		}
		defer dir.Close()
		return start(dir)
	}
	own, err := i.g.h.own()
	if err != nil {
		return err
	}
	for _, dir := range i.dirs {
		name, _, _ := strings.Cut(strings.TrimPrefix(dir, i.g.h.root+"/"), "/")
		if err := i.moveThread(dir); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, i.moveThread(filepath.Join(i.g.h.root, name, own[name]))) }()
	}
	return start(nil)
}

// moveThread moves the calling thread into a group of v1. It is cheap because no other thread can move it meanwhile.
func (i *Inside) moveThread(dir string) error {
	if err := i.g.h.write(filepath.Join(dir, "tasks"), "0"); err != nil {
		return fmt.Errorf("join cgroup: %w", err)
	}
	return nil
}

// ownGroups returns the groups of this thread by controller; "" is the name of v2.
func ownGroups() (map[string]string, error) {
	data, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return nil, err
	}
	groups := map[string]string{}
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 {
			for name := range strings.SplitSeq(fields[1], ",") {
				groups[name] = fields[2]
			}
		}
	}
	return groups, nil
}

// Freeze stops all processes inside, and waits until they stand still. If ctx ends before, they go on.
func (i *Inside) Freeze(ctx context.Context) error {
	file, on, frozen := i.findFreezer()
	if file == "" {
		return errors.ErrUnsupported
	}
	for delay := 100 * time.Microsecond; ; delay = min(2*delay, 10*time.Millisecond) {
		// Each time: v1 leaves out a process that is just about to wait for its vfork.
		if err := i.g.h.write(file, on); err != nil {
			return errors.Join(fmt.Errorf("freeze: %w", err), i.Thaw())
		}
		done, err := frozen()
		if done {
			return nil
		}
		if err == nil {
			select {
			case <-time.After(delay):
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		return errors.Join(err, i.Thaw())
	}
}

// Thaw lets the processes inside go on.
func (i *Inside) Thaw() error {
	file, _, _ := i.findFreezer()
	if file == "" {
		return nil
	}
	off := "THAWED"
	if i.g.h.v2 {
		off = "0"
	}
	err := i.g.h.write(file, off)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return nil // the group has been removed
	}
	return err
}

// Thaw continues processes inside that a supervisor froze before it died. With v1, frozen processes that are killed do not end.
func (g Group) Thaw() error { return (&Inside{g: g, dirs: g.insideDirs()}).Thaw() }

// findFreezer returns the file that freezes, its value for that, and a function that reports whether all processes stand still; "" if
// there is none.
func (i *Inside) findFreezer() (file, on string, frozen func() (bool, error)) {
	for _, dir := range i.dirs {
		if i.g.h.v2 {
			return filepath.Join(dir, "cgroup.freeze"), "1", func() (bool, error) {
				return readKey(filepath.Join(dir, "cgroup.events"), "frozen") == 1, nil
			}
		}
		if file := filepath.Join(dir, "freezer.state"); pathExists(file) {
			return file, "FROZEN", func() (bool, error) {
				state, err := os.ReadFile(file)
				return strings.TrimSpace(string(state)) == "FROZEN", err
			}
		}
	}
	return "", "", nil
}
