package main

import (
	"errors"
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
		return usagef("wrong number of arguments: write it like %s", strings.TrimSpace(cmd.UseLine()))
	}
}

// flagError adds the nearest flag that there is to the error of an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return err // the nearest of one letter is any
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	return usagef("unknown flag --%s: the nearest known one is --%s", unknown.GetSpecifiedName(), config.Nearest(unknown.GetSpecifiedName(), known))
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
