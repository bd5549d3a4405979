//go:build !linux && !darwin && !windows

package config

import "github.com/seed46cd37a8/atoll"

// openVMDocker is never called: Entry.Open refuses this system.
func openVMDocker(*Config, Options) (atoll.Provider, error) {
	return nil, atoll.Errorf("open", "vmdocker", atoll.ErrUnavailable, "this binary does not include vmdocker")
}
