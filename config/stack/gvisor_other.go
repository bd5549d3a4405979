//go:build !linux || fuzz

package stack

import (
	"github.com/seed46cd37a8/atoll"
)

// openGVisor fails. It is only called by the fuzzer: OpenProvider refuses systems without gVisor.
func openGVisor(*Builder, Options) (atoll.Provider, error) {
	return nil, atoll.Errorf("open", "gvisor", atoll.ErrUnavailable, "this binary does not include gvisor")
}
