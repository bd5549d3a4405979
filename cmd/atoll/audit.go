package main

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll/storage/store"
)

func newAudit(a *app) *cobra.Command {
	var q store.AuditQuery
	var since time.Duration
	var asJSON, follow bool
	cmd := &cobra.Command{
		Use:   "audit [flags]",
		Short: "Print who has done what to which sandbox on servers",
		Long: `Audit prints what was done on the servers that share a store, and by whom: sandboxes
made, started, stopped, removed, commands run, keys made, rotated, removed, and what
was denied. Commands are without what looks like a secret; their environment and input
are not kept, nor which files were read and written. What commands of this program
do without a server is not among it, but for keys.

With --project it is about that project. Events are kept for audit.keep.`,
		Example: `  atoll audit --project web --since 24h
  atoll audit --follow --json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.Limit < 1 || q.Limit > store.MaxAuditEvents {
				return usagef("limit %d: must be within 1..%d", q.Limit, store.MaxAuditEvents)
			}
			if since > 0 {
				q.Since = time.Now().Add(-since)
			}
			var err error
			if q.Project, err = a.project(); err != nil {
				return err
			}
			return a.with(cmd, func(ctx context.Context, c *connection) error { return a.showEvents(ctx, c, q, follow, asJSON) })
		},
	}
	cmd.Flags().StringVar(&q.Sandbox, "sandbox", "", "only what was done to the sandbox of this `id`")
	cmd.Flags().StringVar(&q.Account, "account", "", "only what was done by the account of this `name`")
	cmd.Flags().DurationVar(&since, "since", 0, "only what was done in this `time`, like 24h")
	cmd.Flags().IntVar(&q.Limit, "limit", 100, "how `many` at most, the newest")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is done from now on")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object on each line")
	return cmd
}

// followEvery is how often it is asked for new events.
const followEvery = time.Second

func (a *app) showEvents(ctx context.Context, c *connection, q store.AuditQuery, follow, asJSON bool) error {
	events, err := c.client.Events(ctx, q)
	if err == nil {
		err = a.printEvents(events, asJSON, true)
	}
	if !follow || err != nil {
		return err
	}
	q.After = 0
	for {
		if len(events) > 0 {
			q.After = events[len(events)-1].ID
		}
		if len(events) < q.Limit || q.After == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(followEvery):
			}
		}
		if events, err = c.client.Events(ctx, q); err != nil {
			return err
		}
		if err := a.printEvents(events, asJSON, false); err != nil {
			return err
		}
	}
}

func (a *app) printEvents(events []store.AuditEvent, asJSON, head bool) error {
	var rows [][]string
	if head {
		rows = append(rows, []string{"TIME", "ACCOUNT", "KEY", "OP", "PROJECT", "SANDBOX", "WHAT", "RESULT"})
	}
	for _, e := range events {
		if asJSON {
			if err := a.printEvent(e); err != nil {
				return err
			}
			continue
		}
		what := cmp.Or(strings.Join(e.Command, " "), e.Target)
		rows = append(rows, []string{
			e.Time.Local().Format(time.DateTime), e.Account, e.KeyName, e.Op, e.Project, shortID(e.Sandbox), clip(what), cmp.Or(string(e.Kind), "ok"),
		})
	}
	if asJSON || len(rows) == 0 {
		return nil
	}
	return a.printTable(rows)
}

// clip is the beginning of what does not fit a line.
func clip(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most-3]) + "..."
	}
	return s
}
