//go:build !linux && !darwin && !windows

package stack

import (
	"github.com/seed46cd37a8/atoll"
)

// openVMDocker is never called: OpenProvider refuses this system.
func openVMDocker(*Builder, Options) (atoll.Provider, error) {
	return nil, atoll.Errorf("open", "vmdocker", atoll.ErrUnavailable, "this binary does not include vmdocker")
}
