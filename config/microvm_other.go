//go:build !linux

package config

import (
	"runtime"

	"github.com/seed46cd37a8/atoll"
)

func openMicroVM(*Config, Options) (atoll.Provider, error) {
	return nil, atoll.Errorf("open", "microvm", atoll.ErrUnavailable,
		"microvm runs on Linux only, this is %s: set url to a Linux machine that runs atoll serve", runtime.GOOS)
}
