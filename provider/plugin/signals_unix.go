//go:build unix

package plugin

import (
	"os/signal"
	"syscall"
)

// ignoreBrokenPipes lets writes to a log that nobody reads fail, rather than end the program
// before it has removed its socket: Atoll may have been killed.
func ignoreBrokenPipes() { signal.Ignore(syscall.SIGPIPE) }
