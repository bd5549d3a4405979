package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/printable"
)

func newWatch(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "watch [flags] [SANDBOX...]",
		Aliases: []string{"events"},
		Short:   "Print the state of sandboxes, and then each change",
		Long: `Watch prints the state of every sandbox, or of the named ones, and then each change
until it is interrupted. With --json it prints one event per line; an event of type
synced marks the end of the initial states.`,
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				var ids []string
				for _, ref := range args {
					sb, err := c.findSandbox(ctx, ref)
					if err != nil {
						return err
					}
					ids = append(ids, sb.ID())
				}
				return a.watchSandboxes(ctx, c, ids, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object for each event")
	return cmd
}

// watchSandboxes prints changes until ctx ends, and then returns nil.
func (a *app) watchSandboxes(ctx context.Context, c *connection, ids []string, asJSON bool) error {
	for e, err := range c.Watch(ctx) {
		if ctx.Err() != nil {
			return nil // interrupted by the user
		}
		if err != nil {
			return err
		}
		if e.Type == atoll.EventState && len(ids) > 0 && !slices.Contains(ids, e.Status.ID) {
			continue
		}
		if asJSON {
			err = a.printEvent(e)
		} else if e.Type == atoll.EventState {
			_, err = fmt.Fprintf(a.stdout, "%s  %s  %-12s  %s\n",
				e.Time.Local().Format(time.RFC3339), shortID(e.Status.ID), printable.Escape(orDash(e.Status.Spec.Name), ""), printable.Escape(shownState(e.Status), ""))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
