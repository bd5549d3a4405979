package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// The exit codes that are not the command's own, as docker has them.
const (
	exitTimeout  = atoll.ExitTimedOut // the command ran into its time limit
	exitOwn      = 125                // Atoll itself failed, whatever the command line
	exitCannot   = 126                // the command is there but could not be started
	exitNotThere = 127                // the command is not there
)

// An exitError ends the program with a code and says nothing: the command has
// said it already.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// A signalError says that a signal ended us.
type signalError struct{ sig atoll.Signal }

func (e signalError) Error() string { return "ended by " + e.sig.String() }

// asExit turns the exit of a command into our own.
func asExit(e atoll.Exit) error {
	if e.Code == 0 {
		return nil
	}
	return exitError(e.Code)
}

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

// report prints err for people, on stderr, each line with our name.
func (a *app) report(err error) {
	var code exitError
	var sig signalError
	if err == nil || errors.As(err, &code) || errors.As(err, &sig) {
		return // who sent the signal knows
	}
	for line := range strings.Lines(oneLine(err.Error())) {
		a.say("%s", strings.TrimSuffix(line, "\n"))
	}
}

// say prints a message of ours, which never goes to stdout: that is the
// command's.
func (a *app) say(format string, args ...any) {
	end := "\n"
	if a.raw.Load() && isTerminal(a.stderr) {
		end = "\r\n"
	}
	fmt.Fprint(a.stderr, "atoll: "+printable(fmt.Sprintf(format, args...), "\n")+end)
}

// usagef is a mistake on the command line.
func usagef(format string, args ...any) error {
	return atoll.Errorf("", "", atoll.ErrInvalid, format, args...)
}
