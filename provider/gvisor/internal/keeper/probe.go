//go:build linux

package keeper

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/guest"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
)

// ProbeArgv0 is the argv[0] of a process that only tries what a keeper needs:
// its exit code tells, and what it prints says why not.
const ProbeArgv0 = "atoll-probe"

func probe() int {
	if err := tryNamespaces(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func tryNamespaces() error {
	if err := ownMounts(); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("change mounts: %w", err)
	}
	if err := unix.Mount("atoll", os.TempDir(), "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	netns, err := newNetns()
	if err != nil {
		return err
	}
	return netns.Close()
}

// ownMounts checks that this process has a mount namespace of its own: what it
// is about to do to its mounts must never happen to the machine's.
func ownMounts() error {
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	if err == nil && ours == theirs {
		return errors.New("this is a helper process of Atoll: it must be started by it, in a mount namespace of its own")
	}
	return nil
}

// runGuest is the main function of this binary inside a sandbox: it serves the
// file system around it on the socket that is its stdin.
func runGuest() int {
	conn, err := net.FileConn(os.Stdin)
	if err != nil {
		return 1
	}
	workdir := "/"
	if len(os.Args) > 1 {
		workdir = os.Args[1]
	}
	if err := guest.Serve(conn, dirfs.Options{Workdir: workdir, UID: -1, GID: -1}); err != nil {
		return 1
	}
	return 0
}
