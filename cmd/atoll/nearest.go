package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
)

// nearestTo returns advice that names the known word nearest to a misspelt one, or "" if none is near.
func nearestTo(word string, known []string) string {
	if near := config.Nearest(word, known); near != "" && near != word && len(word) > 1 { // any word is near a single letter
		return "; the nearest is " + near
	}
	return ""
}

// notThere returns the error for a thing that does not exist, with advice at its end.
func notThere(advice, format string, args ...any) error {
	return atoll.Errorf("", "", atoll.ErrNotExist, format+"%s", append(args, advice)...)
}

// neverGuessed are commands that remove or end something. They are not proposed for a misspelt word.
var neverGuessed = []string{"stop", "rm", "kill", "prune", "end", "close"}

// unknownCommandError returns the error for a word that is no command below cmd, with the nearest one.
func unknownCommandError(cmd *cobra.Command, word string) error {
	var known, longer []string
	for _, c := range cmd.Commands() {
		if !c.IsAvailableCommand() || slices.Contains(neverGuessed, c.Name()) {
			continue
		}
		known = append(known, c.Name())
		if len(word) > 2 && strings.HasPrefix(c.Name(), word) {
			longer = append(longer, c.Name())
		}
	}
	msg := fmt.Sprintf("unknown command %q for %q", word, cmd.CommandPath())
	switch near := config.Nearest(word, known); {
	case len(longer) > 0:
		return usageErrorf("%s: did you mean %s?", msg, strings.Join(longer, " or "))
	case near != "" && len(word) > 1: // any command is near a single letter
		return usageErrorf("%s: did you mean %s?", msg, near)
	}
	return usageErrorf("%s: %s --help lists the known ones", msg, cmd.CommandPath())
}

// adviseUnknown returns err, or unknownCommandError if err is that of cobra for an unknown command of root.
func adviseUnknown(root *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	rest, ok := strings.CutPrefix(err.Error(), "unknown command ")
	quoted, unquoteErr := strconv.QuotedPrefix(rest)
	if !ok || unquoteErr != nil || !strings.HasSuffix(rest, fmt.Sprintf(" for %q", root.Name())) {
		return err
	}
	word, unquoteErr := strconv.Unquote(quoted)
	if unquoteErr != nil {
		return err
	}
	return unknownCommandError(root, word)
}
