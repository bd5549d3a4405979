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
		Short: "Print the audit log of servers",
		Long: `Audit prints the operations on the servers that share a store, and their accounts:
sandboxes created, started, stopped or removed, commands run, keys created, rotated
or removed, and denied calls. It also prints what the networks of sandboxes refused,
with the account whose command failed. Commands are without likely secrets; their
environment and input are not in the log, nor are the names of files that were read
or written. Commands of this program without a server are not in the log, except
for those on keys.

With --project it prints the events of that project. Events are retained for
audit.keep.`,
		Example: `  atoll audit --project web --since 24h
  atoll audit --follow --json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.Limit < 1 || q.Limit > store.MaxAuditEvents {
				return usageErrorf("limit %d: must be within 1..%d", q.Limit, store.MaxAuditEvents)
			}
			if since > 0 {
				q.Since = time.Now().Add(-since)
			}
			var err error
			if q.Project, err = a.namedProject(); err != nil {
				return err
			}
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error { return a.showEvents(ctx, c, q, follow, asJSON) })
		},
	}
	cmd.Flags().StringVar(&q.Sandbox, "sandbox", "", "only events of the sandbox with this `id`")
	cmd.Flags().StringVar(&q.Account, "account", "", "only events of the account with this `name`")
	cmd.Flags().DurationVar(&since, "since", 0, "only events of the last `time`, like 24h")
	cmd.Flags().IntVar(&q.Limit, "limit", 100, "maximum `number` of events, the newest")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new events")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object on each line")
	return cmd
}

// followInterval is the interval of requests for new events.
const followInterval = time.Second

// showEvents prints the events that q selects, and with follow also later ones.
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
			case <-time.After(followInterval):
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
		if e.Op == "refused" {
			what += ": " + e.Message
		}
		rows = append(rows, []string{
			e.Time.Local().Format(time.DateTime), e.Account, e.KeyName, e.Op, e.Project, shortID(e.Sandbox), clipLine(what), cmp.Or(string(e.Kind), "ok"),
		})
	}
	if asJSON || len(rows) == 0 {
		return nil
	}
	return a.printTable(rows)
}

// clipLine shortens s to a column of a table.
func clipLine(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most-3]) + "..."
	}
	return s
}
