//go:build !linux

package stack

import (
	"context"
	"runtime"

	"github.com/seed46cd37a8/atoll"
)

func probeQEMU(context.Context, *Builder) atoll.Probe {
	return atoll.Probe{
		Reason: "the driver qemu is only available on Linux, current platform: " + runtime.GOOS,
		Fix:    "on macOS use vz, on Windows wsl2",
	}
}
