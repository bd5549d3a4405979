//go:build !linux || fuzz

package config

import "github.com/seed46cd37a8/atoll"

// openGVisor fails. It is only called by the fuzzer: Entry.Open refuses systems without gVisor.
func openGVisor(*Config, Options) (atoll.Provider, error) {
	return nil, atoll.Errorf("open", "gvisor", atoll.ErrUnavailable, "this binary does not include gvisor")
}
