package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

func newWatch(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "watch [flags] [SANDBOX...]",
		Short: "Print the state of sandboxes, and then each change as it happens",
		Long: `Watch prints the state of every sandbox, or of those named, and then each change
until it is interrupted. With --json it prints one event to a line; the event of
type synced ends the states that were there before.`,
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, func(ctx context.Context, c *connection) error {
				var ids []string
				for _, ref := range args {
					sb, err := c.find(ctx, ref)
					if err != nil {
						return err
					}
					ids = append(ids, sb.ID())
				}
				return a.watch(ctx, c, ids, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object for each event")
	return cmd
}

func (a *app) watch(ctx context.Context, c *connection, ids []string, asJSON bool) error {
	for e, err := range c.Watch(ctx) {
		if ctx.Err() != nil {
			return nil // interrupted, which is how it is meant to end
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
				e.Time.Local().Format(time.RFC3339), shortID(e.Status.ID), orDash(e.Status.Spec.Name), shownState(e.Status))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
