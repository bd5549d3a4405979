package stack

import (
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/native"
)

func openNative(b *Builder, opts Options) (atoll.Provider, error) {
	return native.New(native.Options{
		Dir:         filepath.Join(b.StateDir, "native"),
		HostPaths:   b.Native.HostPaths,
		HostNetwork: b.Native.HostNetwork,
		Log:         opts.Log,
	})
}
