//go:build !linux

package vmengine

import (
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Mounts means that a process has its own mounts, which only Linux has.
const Mounts = false

// Usage means that the resource usage of a machine is known.
const Usage = false

func bindMount(string, string) error { return errMounts() }
func makeReadOnly(string) error      { return errMounts() }
func detachMount(string) error       { return nil }

func errMounts() error {
	return atoll.Errorf("mount", "", atoll.ErrUnsupported, "shared files and read-only shares need Linux")
}

// childTime returns an error: only Linux reports the CPU time of running children.
func childTime() (time.Duration, error) {
	return 0, atoll.Errorf("usage", "", atoll.ErrUnsupported, "the CPU time of a machine is known only on Linux")
}
