//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// passedOn are the signals that go to the command, and their Linux numbers,
// which differ from those of other systems.
var passedOn = map[os.Signal]atoll.Signal{
	syscall.SIGINT:  atoll.SIGINT,
	syscall.SIGTERM: atoll.SIGTERM,
	syscall.SIGHUP:  atoll.SIGHUP,
	syscall.SIGQUIT: atoll.SIGQUIT,
	syscall.SIGUSR1: atoll.SIGUSR1,
	syscall.SIGUSR2: atoll.SIGUSR2,
}

// ending are those that ask us to end.
var ending = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

var errBrokenPipe error = syscall.EPIPE

// surviveBrokenPipes makes a write to a closed stdout fail instead of ending
// the program, which has things to put in order first. The signal is caught,
// not ignored: that our children would inherit.
func surviveBrokenPipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// notifyResize tells c when the terminal's size has changed.
func notifyResize(c chan<- os.Signal) { signal.Notify(c, syscall.SIGWINCH) }
