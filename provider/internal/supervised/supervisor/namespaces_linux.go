package supervisor

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OwnMounts checks that this process has a mount namespace of its own: what it
// is about to do to its mounts must never happen to the machine's.
func OwnMounts() error {
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

// detachMounts lets nothing that is mounted here be seen outside; what is
// unmounted there goes here too, or devices of the host would be busy as long as a
// sandbox lives.
func detachMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("detach mounts: %w", err)
	}
	return nil
}

// TryMounts tries, in a process that is started as a supervisor would be and in its
// place, whether it could mount what it needs to.
func TryMounts() error {
	if err := OwnMounts(); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("change mounts: %w", err)
	}
	if err := unix.Mount("atoll", os.TempDir(), "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return nil
}
