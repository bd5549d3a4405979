//go:build !fuzz

// The instrumentation of the fuzzer makes functions of gVisor exceed their stack limits.

package config

import (
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
)

func openGVisor(cfg *Config, opts Options) (atoll.Provider, error) {
	return gvisor.New(gvisor.Options{
		Dir:       filepath.Join(cfg.StateDir, "gvisor"),
		HostPaths: cfg.GVisor.HostPaths,
		Platform:  cfg.GVisor.Platform,
		Debug:     cfg.GVisor.Debug,
		Image:     imageOptions(cfg.Image),
		Spare:     opts.Server,
		Log:       opts.Log,

		BuildHelper: true,
	})
}
