//go:build !unix

package local

import (
	"runtime"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/inprocess"
)

func probeSystem() atoll.Probe {
	return atoll.Probe{
		Reason: "local is only available on Unix systems, current platform: " + runtime.GOOS,
		Fix:    "use docker (--provider docker)",
	}
}

// newBackend is never called, since New fails.
func newBackend(string) inprocess.Backend { return nil }
