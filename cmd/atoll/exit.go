package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/printable"
)

// Exit codes besides those of commands; they are docker's.
const (
	exitTimeout  = atoll.ExitTimedOut // the command reached its time limit
	exitOwn      = 125                // Atoll itself failed, or the command line is wrong
	exitCannot   = 126                // the command exists but could not be started
	exitNotThere = 127                // the command does not exist
)

// An exitError ends the program with a code and without a message: the command has printed its own.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// A signalError means that a signal ended the program.
type signalError struct{ sig atoll.Signal }

func (e signalError) Error() string { return "ended by " + e.sig.String() }

// asExit converts the exit of a command to an error of this program.
func asExit(e atoll.Exit) error {
	if e.Code == 0 {
		return nil
	}
	return exitError(e.Code)
}

// exitCode returns the exit code of this program for err.
func exitCode(err error) int {
	var code exitError
	var sig signalError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &sig):
		return 128 + int(sig.sig)
	case errors.Is(err, atoll.ErrCommandNotFound):
		return exitNotThere
	case errors.Is(err, atoll.ErrExecFailed):
		return exitCannot
	}
	return exitOwn
}

// reportError prints err on stderr, with the name of the program on each line.
func (a *app) reportError(err error) {
	var code exitError
	var sig signalError
	if err == nil || errors.As(err, &code) || errors.As(err, &sig) {
		return // the sender of the signal knows
	}
	for line := range strings.Lines(oneLine(err.Error())) {
		a.printMessage("%s", strings.TrimSuffix(line, "\n"))
	}
}

// printMessage prints a message of this program on stderr. Stdout belongs to the command.
func (a *app) printMessage(format string, args ...any) {
	end := "\n"
	if a.rawTerminal.Load() && isTerminal(a.stderr) {
		end = "\r\n"
	}
	fmt.Fprint(a.stderr, "atoll: "+printable.Escape(fmt.Sprintf(format, args...), "\n")+end)
}

// usageErrorf returns the error for a mistake on the command line.
func usageErrorf(format string, args ...any) error {
	return atoll.Errorf("", "", atoll.ErrInvalid, format, args...)
}
