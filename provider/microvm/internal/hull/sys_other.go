//go:build unix && !linux

package hull

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

// Mounts says that a process has mounts of its own, which it has on Linux only.
const Mounts = false

// Usage says that it is known what a machine uses.
const Usage = false

func bind(string, string) error { return errMounts() }
func seal(string) error         { return errMounts() }
func unmount(string) error      { return nil }

func errMounts() error {
	return atoll.Errorf("mount", "", atoll.ErrUnsupported, "a file, and a directory that is not to be changed, can be shared on Linux only")
}

// card returns the ends of a network: ours, and that of a machine's card.
func card() (ours, theirs *os.File, err error) {
	syscall.ForkLock.RLock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(unix.SetNonblock(fds[0], true), unix.SetNonblock(fds[1], true)); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	ours, theirs = ends(fds)
	return ours, theirs, nil
}

// childTime would be the CPU time of this process's children, which nothing tells while
// they run.
func childTime() (time.Duration, error) {
	return 0, atoll.Errorf("usage", "", atoll.ErrUnsupported, "the CPU time of a machine is known on Linux only")
}
