//go:build !linux && !darwin

package stack

import (
	"github.com/seed46cd37a8/atoll"
)

// openNative is never called: OpenProvider refuses systems without native.
func openNative(*Builder, Options) (atoll.Provider, error) {
	return nil, atoll.Errorf("open", "native", atoll.ErrUnavailable, "this binary does not include native")
}
