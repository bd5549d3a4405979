package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/printable"
)

// Exit codes of commands that do not run a program in a sandbox.
const (
	exitFailed = 1
	exitUsage  = 2 // the command line is wrong
)

// Exit codes of run and exec besides those of their commands; they are docker's.
const (
	exitTimeout  = atoll.ExitTimedOut // the command reached its time limit
	exitOwn      = 125                // Atoll itself failed, or the command line is wrong
	exitCannot   = 126                // the command exists but could not be started
	exitNotThere = 127                // the command does not exist
)

// isRunner reports whether cmd runs a program in a sandbox and ends with its exit code.
func isRunner(cmd *cobra.Command) bool {
	return slices.Contains([]string{"atoll run", "atoll exec", "atoll shell"}, cmd.CommandPath())
}

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

// A usageError is a mistake on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitCode returns the exit code of this program for err. runner is that of isRunner.
func exitCode(err error, runner bool) int {
	var code exitError
	var sig signalError
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &sig):
		return 128 + int(sig.sig)
	case !runner && errors.As(err, &usage):
		return exitUsage
	case !runner:
		return exitFailed
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
	for line := range strings.Lines(err.Error()) {
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
	return usageError{atoll.Errorf("", "", atoll.ErrInvalid, format, args...)}
}
