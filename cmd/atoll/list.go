package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// A listing is how a list is printed: as a table, as JSON, or by names alone.
type listing struct{ quiet, asJSON bool }

// register adds the flags; quiet says what -q prints.
func (l *listing) register(cmd *cobra.Command, quiet string) {
	cmd.Flags().BoolVarP(&l.quiet, "quiet", "q", false, quiet)
	cmd.Flags().BoolVar(&l.asJSON, "json", false, "print a JSON array")
}

// printList prints all: in a table below header, a row for each; or what name
// says of each.
func printList[T any](a *app, l listing, all []T, name func(T) string, header []string, row func(T) []string) error {
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
	return a.printTable(rows)
}
