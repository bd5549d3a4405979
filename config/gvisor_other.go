//go:build !linux || fuzz

package config

import (
	"runtime"

	"github.com/seed46cd37a8/atoll"
)

func openGVisor(*Config, Options) (atoll.Provider, error) {
	return nil, atoll.Errorf("open", "gvisor", atoll.ErrUnavailable,
		"gvisor runs on Linux only, this is %s: set url to a Linux machine that runs atoll serve", runtime.GOOS)
}
