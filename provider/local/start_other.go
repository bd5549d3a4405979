//go:build !unix

package local

import (
	"context"
	"runtime"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/provider/internal/inprocess"
)

func probeSystem() atoll.Probe {
	return atoll.Probe{
		Reason: "local is only available on Unix systems, current platform: " + runtime.GOOS,
		Fix:    "use docker (--provider docker)",
	}
}

// The methods below are never called, since New fails.

func (backend) OwnUser(string) bool                           { return false }
func (backend) Shell(*inprocess.Place, *atoll.Command) string { return "" }
func (backend) Sweep(string) error                            { return nil }
func (backend) Start(context.Context, *inprocess.Place, *atoll.Command, process.Stdio) (process.Handle, error) {
	return nil, atoll.E("exec", "", atoll.ErrUnsupported, nil)
}
