package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll/layer/pool"
)

func newPool(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pool",
		Short: "Sandboxes that a server keeps running ahead of need",
		Long: `A server keeps sandboxes running for those who will ask for one like them: each
table below pool in the configuration file is a pool. Whoever creates a sandbox that
is the same but for name, labels and time to live gets one of them at once. As none
can be told later how to end, pool.NAME.for says whom they are for: who creates a
sandbox, runs a command in one with atoll run, or opens a session.`,
	}
	cmd.AddCommand(newPoolLs(a), newPoolStats(a))
	return cmd
}

func newPoolLs(a *app) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List pools, and how many sandboxes each has",
		Long: `Ls lists pools. WARM says how many sandboxes run for nobody yet, and how many there
are to be. They are in no other list, and cannot be used by their ids, which --json
shows.`,
		Aliases:           []string{"list"},
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, func(ctx context.Context, c *connection) error {
				report, err := pool.ReportOf(ctx, c.Provider)
				if err != nil {
					return err
				}
				return printList(a, l, report.Pools, func(p pool.Pool) string { return p.Name },
					[]string{"NAME", "PROVIDER", "PROJECT", "IMAGE", "WARM", "BOOTING", "PROBLEM"},
					func(p pool.Pool) []string {
						return []string{p.Name, p.Provider, p.Spec.Project, p.Spec.Image, fmt.Sprintf("%d/%d", p.Warm, p.Min), strconv.Itoa(p.Booting), p.Problem}
					})
			})
		},
	}
	l.register(cmd, "print names only")
	return cmd
}

func newPoolStats(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stats [flags]",
		Short: "Print what use pools were since the server began",
		Long: `Stats prints for each pool, and for all, how many creations got a sandbox of it
(HITS) or found it empty (MISSES), how many were made for it, and how many of those
went without being asked for. Creations that asked for what no pool has are counted
as UNMATCHED.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, func(ctx context.Context, c *connection) error {
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
