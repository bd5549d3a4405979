//go:build !linux

package vmengine

import (
	"time"

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

// childTime would be the CPU time of this process's children, which nothing tells while
// they run.
func childTime() (time.Duration, error) {
	return 0, atoll.Errorf("usage", "", atoll.ErrUnsupported, "the CPU time of a machine is known on Linux only")
}
