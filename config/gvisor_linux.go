package config

import (
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/image"
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
	})
}

func imageOptions(i Image) image.Options {
	return image.Options{Insecure: i.Insecure, Pull: image.Policy(i.Pull), Timeout: time.Duration(i.Timeout), Limit: i.Limit}
}
