//go:build !linux && !darwin && !windows

package config

import "github.com/seed46cd37a8/atoll"

// openMicroVM is not called: Entry.Open knows that there is none.
func openMicroVM(*Config, Options) (atoll.Provider, error) {
	return nil, atoll.Errorf("open", "microvm", atoll.ErrUnavailable, "it is not in this binary")
}
