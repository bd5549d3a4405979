package supervisor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// OwnMounts returns an error unless this process has a mount namespace of its own: the
// mounts that it is about to make must never happen to the machine's namespace.
func OwnMounts() error {
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	if err == nil && ours == theirs {
		return errors.New("this is a helper process of Atoll: only Atoll may start it, in a mount namespace of its own")
	}
	return nil
}

// maxIDWait limits the wait of AwaitIDs.
const maxIDWait = 10 * time.Second

// AwaitIDs waits until the user namespace of this process has users, which the process that started this one gives it. Then this
// process is root there. Programs that it executes do not get its rights. gone reports that the other process has ended.
func AwaitIDs(gone func() bool) error {
	for deadline := time.Now().Add(maxIDWait); ; time.Sleep(500 * time.Microsecond) {
		users, err1 := os.ReadFile("/proc/self/uid_map")
		groups, err2 := os.ReadFile("/proc/self/gid_map")
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if len(users) > 0 && len(groups) > 0 {
			break
		}
		if time.Now().After(deadline) || gone() {
			return errors.New("the user namespace has no users")
		}
	}
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
}

// detachMounts hides mounts made here from the outside. Unmounts outside still take effect
// here: otherwise devices of the host would be busy as long as a sandbox lives.
func detachMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("detach mounts: %w", err)
	}
	return nil
}

// TryMounts tries whether a supervisor could mount what it needs, in a process that is
// started like a supervisor, in its place.
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
