//go:build !fuzz

// The instrumentation of the fuzzer makes functions of gVisor exceed their stack limits.

package stack

import (
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
)

func openGVisor(b *Builder, opts Options) (atoll.Provider, error) {
	return gvisor.New(gvisor.Options{
		Dir:       filepath.Join(b.StateDir, "gvisor"),
		HostPaths: b.GVisor.HostPaths,
		Platform:  b.GVisor.Platform,
		Debug:     b.GVisor.Debug,
		Image:     imageOptions(b.Image),
		Spare:     opts.Server,
		Stock:     b.stockOf("gvisor", opts),
		HasRoom:   hasRoom,
		Log:       opts.Log,

		BuildHelper:    true,
		StockResources: b.limitOptions().Resources,
	})
}
