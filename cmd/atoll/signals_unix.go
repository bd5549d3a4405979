//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// forwardedSignals are the signals that are forwarded to the command, with their Linux numbers, which differ from
// those of other systems.
var forwardedSignals = map[os.Signal]atoll.Signal{
	syscall.SIGINT:  atoll.SIGINT,
	syscall.SIGTERM: atoll.SIGTERM,
	syscall.SIGHUP:  atoll.SIGHUP,
	syscall.SIGQUIT: atoll.SIGQUIT,
	syscall.SIGUSR1: atoll.SIGUSR1,
	syscall.SIGUSR2: atoll.SIGUSR2,
}

// terminationSignals are the signals that request the end of the program.
var terminationSignals = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

var errBrokenPipe error = syscall.EPIPE

// surviveBrokenPipes makes a write to a closed stdout fail instead of ending the program, which has to clean up
// first. It catches the signal instead of ignoring it, because child processes would inherit that.
func surviveBrokenPipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// notifyResize sends to c when the size of the terminal changes.
func notifyResize(c chan<- os.Signal) { signal.Notify(c, syscall.SIGWINCH) }
