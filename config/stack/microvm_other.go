//go:build !linux && !darwin && !windows

package stack

import (
	"github.com/seed46cd37a8/atoll"
)

// openMicroVM is never called: OpenProvider refuses this system.
func openMicroVM(*Builder, Options) (atoll.Provider, error) {
	return nil, atoll.Errorf("open", "microvm", atoll.ErrUnavailable, "this binary does not include microvm")
}
