package testenv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// InNetwork calls fn in the network namespace of a process.
func InNetwork(pid int, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// DropCgroups removes the control groups with this name, and those below them, from all hierarchies.
// It retries for the time within, while processes are still leaving the groups.
func DropCgroups(name string, within time.Duration) error {
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + name)
	if err != nil {
		return err
	}
	groups = append(groups, "/sys/fs/cgroup/"+name)
	for end := time.Now().Add(Scale(within)); ; time.Sleep(20 * time.Millisecond) {
		var errs []error
		for _, group := range groups {
			errs = append(errs, dropCgroup(group))
		}
		if err := errors.Join(errs...); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// dropCgroup removes one control group and those below it, if it exists.
func dropCgroup(group string) error {
	var dirs []string
	_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for _, dir := range slices.Backward(dirs) {
		if err := os.Remove(dir); err != nil {
			return err
		}
	}
	return nil
}
