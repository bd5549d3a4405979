package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll/layer/pool"
)

func newPool(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pool",
		Short: "Show the pools of warm sandboxes of a server",
		Long: `A server keeps warm sandboxes in pools: each table below pool in the configuration
file is a pool. A request for a sandbox that is the same but for name, labels and
time to live gets a warm one at once. How a sandbox ends is fixed at its creation,
so pool.NAME.for sets the requests that a pool is for: those of atoll create, of
commands with atoll run, or of sessions.`,
	}
	cmd.AddCommand(newPoolLs(a), newPoolStats(a))
	return cmd
}

func newPoolLs(a *app) *cobra.Command {
	l := listFlags{ifEmpty: "no pools: write one under pool in the configuration; see atoll help pools"}
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List pools and their sandboxes",
		Long: `Ls lists pools. WARM is the number of warm sandboxes, and how many there should be.
No other list has them, and their ids, which --json shows, cannot be used. The pool
default is the stock of the setting warm, which serves all projects.`,
		Aliases:           []string{"list"},
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				report, err := pool.ReportOf(ctx, c.Provider)
				if err != nil {
					return err
				}
				return printList(a, l, report.Pools, func(p pool.Pool) string { return p.Name },
					[]string{"NAME", "PROVIDER", "PROJECT", "IMAGE", "WARM", "BOOTING", "PROBLEM"},
					func(p pool.Pool) []string {
						return []string{p.Name, p.Provider, cmp.Or(p.Spec.Project, "*"), p.Spec.Image, fmt.Sprintf("%d/%d", p.Warm, p.Min), strconv.Itoa(p.Booting), p.Problem}
					})
			})
		},
	}
	l.addFlags(cmd, "print names only")
	return cmd
}

func newPoolStats(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stats [flags]",
		Short: "Print statistics of pools since the start of the server",
		Long: `Stats prints for each pool, and for all, how many creations got a sandbox of it
(HITS) or found it empty (MISSES), how many were created for it (MADE), and how
many of those were removed unused (UNUSED). Creations that match no pool count as
UNMATCHED.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				report, err := pool.ReportOf(ctx, c.Provider)
				if err != nil {
					return err
				}
				if asJSON {
					report.Pools = orEmpty(report.Pools)
					return a.printJSON(report)
				}
				return a.printPoolStats(report)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func (a *app) printPoolStats(report pool.Report) error {
	row := func(name string, s pool.Stats, unmatched string) []string {
		count := func(n int64) string { return strconv.FormatInt(n, 10) }
		return []string{name, count(s.WarmHits), count(s.ColdMisses), fmt.Sprintf("%.0f%%", s.HitRate), count(s.Created), count(s.Destroyed), unmatched}
	}
	rows := [][]string{{"NAME", "HITS", "MISSES", "RATE", "MADE", "UNUSED", "UNMATCHED"}}
	for _, p := range report.Pools {
		rows = append(rows, row(p.Name, p.Stats, ""))
	}
	rows = append(rows, row("total", report.Total, strconv.FormatInt(report.Unmatched, 10)))
	return a.printTable(rows)
}
