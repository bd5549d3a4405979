package main

import (
	"os"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// passedOn are the signals that go to the command: what Windows has of them.
var passedOn = map[os.Signal]atoll.Signal{
	os.Interrupt:    atoll.SIGINT,
	syscall.SIGTERM: atoll.SIGTERM,
}

// ending are those that ask us to end.
var ending = []os.Signal{os.Interrupt, syscall.SIGTERM}

// errBrokenPipe is ERROR_NO_DATA: the reader has closed its end.
var errBrokenPipe error = syscall.Errno(232)

// surviveBrokenPipes has nothing to do: here a write to a closed stdout fails.
func surviveBrokenPipes() {}

// notifyResize has nobody to hear it from: a terminal keeps the size that it had.
func notifyResize(chan<- os.Signal) {}
