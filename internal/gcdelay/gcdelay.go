// Package gcdelay delays the first garbage collection in a program that imports it. The initialisers
// of atoll's packages allocate as much as that collection waits for, nearly all of it for good: it
// takes a tenth of the time of a short command, and a seventh of that of a sandbox's start, and frees
// little.
package gcdelay

import (
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

// The percentages at which the collector begins, as in GOGC. Below 4 MiB of live memory it counts as if
// there were 4 MiB.
const (
	atStart = 400
	normal  = 100
)

func init() {
	setPercent(atStart)
	runtime.AddCleanup(new([64]byte), setPercent, normal) // runs after the first collection
}

// settleTime is the time after which a process counts as idle: the next call that it gets takes some milliseconds longer.
const settleTime = time.Minute

// Shrink returns the memory of the start to the system, in the background and a minute later. Call it in
// processes of which there are many, and which are idle most of the time.
func Shrink() { time.AfterFunc(settleTime, debug.FreeOSMemory) }

// setPercent does nothing if the user has chosen a percentage.
func setPercent(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
