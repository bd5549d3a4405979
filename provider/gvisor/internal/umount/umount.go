//go:build linux

// Package umount does the work of gVisor's helper that unmounts /proc: a third process for each sandbox, which would
// initialise all of gVisor to make one system call. Go initialises packages by their dependencies, then by their paths.
// This one imports as little as possible, so that it takes over before gVisor is initialised.
package umount

import (
	"fmt"
	"os"
	"slices"
	"syscall"
)

func init() {
	if !slices.Equal(os.Args, []string{"/proc/self/exe", "umount", "--sync-fd=3", "/proc"}) {
		return // gVisor itself reads other arguments
	}
	if err := unmountProc(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// unmountProc waits for a byte on descriptor 3. The end of the other process is an error.
func unmountProc() error {
	if n, err := syscall.Read(3, make([]byte, 1)); err != nil || n != 1 {
		return fmt.Errorf("unable to read from the sync descriptor: %d bytes, %w", n, err)
	}
	if err := syscall.Unmount("/proc", syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount /proc: %w", err)
	}
	return nil
}
