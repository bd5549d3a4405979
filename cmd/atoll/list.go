package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// listFlags has the flags of a list: a table, JSON, or names only.
type listFlags struct {
	quiet, asJSON bool
	ifEmpty       string // printed on stderr with a table of nothing: how to make the first
}

// addFlags adds the flags. quiet is the help of -q.
func (l *listFlags) addFlags(cmd *cobra.Command, quiet string) {
	cmd.Flags().BoolVarP(&l.quiet, "quiet", "q", false, quiet)
	cmd.Flags().BoolVar(&l.asJSON, "json", false, "print a JSON array")
}

// printList prints all: as JSON, as the name of each, or as a table with header and the row of each.
func printList[T any](a *app, l listFlags, all []T, name func(T) string, header []string, row func(T) []string) error {
	if l.asJSON {
		return a.printJSON(orEmpty(all))
	}
	rows := [][]string{header}
	for _, x := range all {
		if l.quiet {
			fmt.Fprintln(a.stdout, name(x))
			continue
		}
		rows = append(rows, row(x))
	}
	if l.quiet {
		return nil
	}
	if len(all) == 0 && l.ifEmpty != "" {
		a.printMessage("%s", l.ifEmpty)
	}
	return a.printTable(rows)
}
