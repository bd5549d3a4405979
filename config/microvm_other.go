//go:build !linux && !darwin && !windows

package config

import "github.com/seed46cd37a8/atoll"

// openMicroVM is never called: Entry.Open refuses this system.
func openMicroVM(*Config, Options) (atoll.Provider, error) {
	return nil, atoll.Errorf("open", "microvm", atoll.ErrUnavailable, "this binary does not include microvm")
}
