package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed46cd37a8/atoll/config"
)

// showUsage makes commands with a wrong number of arguments print their usage line.
func showUsage(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		showUsage(sub)
	}
	check := cmd.Args
	if check == nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if check(cmd, args) == nil {
			return nil
		}
		if cmd.HasAvailableSubCommands() && len(args) > 0 {
			return unknownCommandError(cmd, args[0])
		}
		hint := ""
		if len(args) == 0 && strings.Contains(cmd.Use, " SANDBOX") {
			hint = "; atoll ls lists sandboxes"
		}
		return usageErrorf("wrong number of arguments: write it like %s%s", strings.TrimSpace(cmd.UseLine()), hint)
	}
}

// dockerHints has advice for flags of docker that atoll does not have.
var dockerHints = map[string]string{
	"net":        "use --network none, on, egress or named:NAME",
	"restart":    "a sandbox that ends remains stopped: use atoll start",
	"entrypoint": "the entrypoint of an image does not run: name the command",
	"privileged": "all sandboxes have the same rights",
	"cap-add":    "all sandboxes have the same rights",
	"device":     "sandboxes cannot use devices of the host",
}

// flagError adds advice to an error about a flag.
func flagError(cmd *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	if errors.As(err, &value) {
		return usageErrorf("--%s: %w", value.GetFlag().Name, valueError(value))
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	name, dashes := unknown.GetSpecifiedName(), "--"
	if len(name) == 1 {
		dashes = "-"
	}
	if hint := dockerHints[name]; hint != "" {
		return usageErrorf("unknown flag %s%s: %s", dashes, name, hint)
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	if near := config.Nearest(name, known); near != "" && len(name) > 1 { // any name is similar to a single letter
		return usageErrorf("unknown flag --%s: the nearest known one is --%s", name, near)
	}
	return usageErrorf("unknown flag %s%s: %s --help lists the known ones", dashes, name, cmd.CommandPath())
}

// valueError describes the valid values of a flag. Our own types do so themselves.
func valueError(err *pflag.InvalidValueError) error {
	switch err.GetFlag().Value.Type() {
	case "bool":
		return fmt.Errorf("%q: write true or false", err.GetValue())
	case "int":
		return fmt.Errorf("%q: write a whole number", err.GetValue())
	case "float64":
		return fmt.Errorf("%q: write a number", err.GetValue())
	}
	return err.Unwrap()
}

// unknownCommand returns the error for an unknown subcommand, or nil if the arguments have none.
func unknownCommand(cmd *cobra.Command) error {
	words := cmd.Flags().Args()
	if len(words) == 0 || !cmd.HasAvailableSubCommands() || cmd.Runnable() {
		return nil
	}
	return unknownCommandError(cmd, words[0])
}

// readerGone reports whether err means that the reader of our stdout or stderr has closed it.
func (a *app) readerGone(err error) bool {
	var perr *fs.PathError
	ours := errors.As(err, &perr) && (perr.Path == a.stdout.Name() || perr.Path == a.stderr.Name())
	return ours && errors.Is(perr, errBrokenPipe)
}
