package main

import (
	"os"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// forwardedSignals are the signals that are forwarded to the command, as far as Windows has them.
var forwardedSignals = map[os.Signal]atoll.Signal{
	os.Interrupt:    atoll.SIGINT,
	syscall.SIGTERM: atoll.SIGTERM,
}

// terminationSignals are the signals that request the end of the program.
var terminationSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

// errBrokenPipe is ERROR_NO_DATA: the reader has closed its end.
var errBrokenPipe error = syscall.Errno(232)

// surviveBrokenPipes does nothing: on Windows a write to a closed stdout fails.
func surviveBrokenPipes() {}

// notifyResize does nothing: Windows has no such signal.
func notifyResize(chan<- os.Signal) {}
