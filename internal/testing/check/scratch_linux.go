package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// memoryLimit bounds the temporary files in memory, and memoryNeeded is how much must be available for
// them and for the programs of the tests.
const (
	memoryLimit  = 10 << 30
	memoryNeeded = 18 << 30
)

// mountMemory mounts a file system in memory at s.tmp, in a new mount namespace, and executes this
// program again in it. It returns only an error.
func mountMemory(s *scratch) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can mount")
	}
	if free, err := availableMemory(); err != nil || free < memoryNeeded {
		return errors.Join(err, fmt.Errorf("%d GiB of memory are available, and %d needed", free>>30, memoryNeeded>>30))
	}
	runtime.LockOSThread() // the namespace is this thread's, until it executes the program
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("check", s.tmp, "tmpfs", 0, fmt.Sprintf("mode=1777,size=%d", memoryLimit)); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return fmt.Errorf("execute the check again: %w", unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), scratchVar+"="+s.dir)))
}

// availableMemory returns the bytes that programs can use without swapping.
func availableMemory() (uint64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib uint64
		if n, _ := fmt.Sscanf(strings.TrimSpace(lines.Text()), "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}

// removeFolder removes the folder with all that it has.
func (s *scratch) removeFolder() {
	if s.why == "" {
		_ = unix.Unmount(s.tmp, unix.MNT_DETACH)
	}
	_ = os.RemoveAll(s.dir)
}
