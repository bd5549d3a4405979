//go:build !linux || fuzz

package config

import "github.com/seed46cd37a8/atoll"

// openGVisor is for where there is no gVisor: systems on which Entry.Open asks nobody, and
// the fuzzer.
func openGVisor(*Config, Options) (atoll.Provider, error) {
	return nil, atoll.Errorf("open", "gvisor", atoll.ErrUnavailable, "it is not in this binary")
}
