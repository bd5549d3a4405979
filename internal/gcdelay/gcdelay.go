// Package gcdelay delays the garbage collector in a program that imports it. The initialisers of
// atoll's packages allocate as much as the first collection waits for, nearly all of it for good:
// a collection then takes a tenth of the time of a short command, and frees little.
package gcdelay

import (
	"os"
	"runtime/debug"
)

// The percentages at which the collector begins, as in GOGC. Below 4 MiB of live memory it counts as if
// there were 4 MiB.
const (
	atStart = 400
	normal  = 100
)

func init() { setPercent(atStart) }

// End ends the delay. A process that outlives a command, or of which there are many, calls it.
func End() { setPercent(normal) }

// setPercent does nothing if the user has chosen a percentage.
func setPercent(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
