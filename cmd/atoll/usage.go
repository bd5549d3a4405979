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

// showUsage makes commands that were given too few or too many arguments say
// how they are written.
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
		hint := ""
		if len(args) == 0 && strings.Contains(cmd.Use, " SANDBOX") {
			hint = "; atoll ls lists sandboxes"
		}
		return usagef("wrong number of arguments: write it like %s%s", strings.TrimSpace(cmd.UseLine()), hint)
	}
}

// dockersOther are flags of docker for which there is something else here.
var dockersOther = map[string]string{
	"net":        "use --network none, on, egress or named:NAME",
	"restart":    "a sandbox that ends stays stopped: atoll start starts it again",
	"entrypoint": "an image's entrypoint is not run: name the command",
	"privileged": "no sandbox has more rights than another",
	"cap-add":    "no sandbox has more rights than another",
	"device":     "devices of the host cannot be had",
}

// flagError says what is wrong with a flag, and what to do about it.
func flagError(cmd *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	if errors.As(err, &value) {
		return usagef("--%s: %w", value.GetFlag().Name, valueError(value))
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	name, dashes := unknown.GetSpecifiedName(), "--"
	if len(name) == 1 {
		dashes = "-"
	}
	if hint := dockersOther[name]; hint != "" {
		return usagef("unknown flag %s%s: %s", dashes, name, hint)
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	if near := config.Nearest(name, known); near != "" && len(name) > 1 { // the nearest of one letter is any
		return usagef("unknown flag --%s: the nearest known one is --%s", name, near)
	}
	return usagef("unknown flag %s%s: %s --help lists the known ones", dashes, name, cmd.CommandPath())
}

// valueError says what the value of a flag must be like. Our own types say so
// themselves.
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

// unknownCommand is the error of a word behind a command that only has
// commands below it, of which it is none; nil when there is no such word.
func unknownCommand(cmd *cobra.Command) error {
	words := cmd.Flags().Args()
	if len(words) == 0 || !cmd.HasAvailableSubCommands() || cmd.Runnable() {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2 // cobra's own, which it sets for root only
	msg := fmt.Sprintf("unknown command %q for %q", words[0], cmd.CommandPath())
	if near := cmd.SuggestionsFor(words[0]); len(near) > 0 {
		return usagef("%s: did you mean %s?", msg, strings.Join(near, " or "))
	}
	return usagef("%s: %s --help lists the known ones", msg, cmd.CommandPath())
}

// oneLine undoes the layout of cobra's suggestions.
func oneLine(msg string) string {
	msg, suggestions, ok := strings.Cut(msg, "\n\nDid you mean this?\n")
	if !ok {
		return msg
	}
	return msg + ": did you mean " + strings.Join(strings.Fields(suggestions), " or ") + "?"
}

// readerGone reports whether err is that nobody reads our stdout, or stderr,
// any longer.
func (a *app) readerGone(err error) bool {
	var perr *fs.PathError
	ours := errors.As(err, &perr) && (perr.Path == a.stdout.Name() || perr.Path == a.stderr.Name())
	return ours && errors.Is(perr, errBrokenPipe)
}
