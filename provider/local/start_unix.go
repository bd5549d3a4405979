//go:build unix

package local

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/hostprocess"
	"github.com/seed46cd37a8/atoll/provider/internal/inprocess"
)

func probeSystem() atoll.Probe { return atoll.Probe{OK: true, Notes: []string{Warning}} }

// newBackend returns the backend of a provider with an absolute directory.
func newBackend(dir string) inprocess.Backend { return hostprocess.New(dir) }
