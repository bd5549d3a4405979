package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

func newSnapshot(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Manage copies of running sandboxes",
		Long: `A snapshot is a copy of a running sandbox at one moment, with /work and without other
volumes. atoll create --snapshot ID starts a sandbox from it, any number of times: with
its files, and the processes that atoll exec --durable started.`,
	}
	cmd.AddCommand(newSnapshotCreate(a), newSnapshotLs(a), newSnapshotRm(a))
	return cmd
}

func newSnapshotCreate(a *app) *cobra.Command {
	var noWork bool
	cmd := &cobra.Command{
		Use:               "create [flags] SANDBOX",
		Short:             "Take a snapshot and print its id; the sandbox continues",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSandbox(cmd, args[0], func(ctx context.Context, _ *connection, sb atoll.Sandbox) error {
				var opts []atoll.SnapshotOption
				if noWork {
					opts = append(opts, atoll.WithoutWork())
				}
				snap, err := atoll.TakeSnapshot(ctx, sb, opts...)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(a.stdout, snap.ID)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&noWork, "no-work", false, "leave out the files of /work")
	return cmd
}

func newSnapshotLs(a *app) *cobra.Command {
	l := listFlags{ifEmpty: "no snapshots yet: atoll snapshot create SANDBOX creates one"}
	cmd := &cobra.Command{
		Use:               "ls [flags]",
		Aliases:           []string{"list"},
		Short:             "List snapshots",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				all, err := atoll.Snapshots(ctx, c.Provider)
				if err != nil {
					return err
				}
				return printList(a, l, all, func(s atoll.Snapshot) string { return s.ID },
					[]string{"ID", "PROVIDER", "SANDBOX", "SIZE", "CREATED"},
					func(s atoll.Snapshot) []string {
						return []string{s.ID, s.Provider, shortID(s.Sandbox), byteCount(int64(s.Size)), formatAgo(time.Since(s.Created))}
					})
			})
		},
	}
	l.addFlags(cmd, "print ids only")
	return cmd
}

func newSnapshotRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "rm SNAPSHOT...",
		Short:             "Remove snapshots",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeSnapshots,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				return a.forEach(args, func(id string) error { return atoll.RemoveSnapshot(ctx, c.Provider, id) })
			})
		},
	}
}
