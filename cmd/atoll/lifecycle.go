package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

// newVerb is a command that does one thing to each of the sandboxes named.
func (a *app) newVerb(use, short string, f func(ctx context.Context, sb atoll.Sandbox) error) *cobra.Command {
	return &cobra.Command{
		Use:               use + " SANDBOX...",
		Short:             short,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeSandboxes,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.eachSandbox(cmd, args, f) },
	}
}

func newStart(a *app) *cobra.Command {
	return a.newVerb("start", "Start sandboxes that were stopped, have failed or were never started",
		func(ctx context.Context, sb atoll.Sandbox) error { return sb.Start(ctx) })
}

func newStop(a *app) *cobra.Command {
	grace := atoll.Duration(atoll.DefaultStopGrace)
	cmd := a.newVerb("stop [flags]", "Stop sandboxes and keep their files",
		func(ctx context.Context, sb atoll.Sandbox) error { return sb.Stop(ctx, time.Duration(grace)) })
	cmd.Flags().VarP((*durationValue)(&grace), "time", "t", "how long processes may take to end before they are killed")
	return cmd
}

func newPause(a *app) *cobra.Command {
	return a.newVerb("pause", "Freeze all processes of sandboxes",
		func(ctx context.Context, sb atoll.Sandbox) error { return atoll.Pause(ctx, sb) })
}

func newResume(a *app) *cobra.Command {
	return a.newVerb("resume", "Let the processes of paused sandboxes go on",
		func(ctx context.Context, sb atoll.Sandbox) error { return atoll.Resume(ctx, sb) })
}

func newExtend(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "extend SANDBOX DURATION",
		Short: "Give a sandbox that expires more time, or less",
		Long: `Extend has a sandbox that was made with --ttl removed so long from now, and not
when its time would have been over; with never it stays.`,
		Example: `  atoll extend web 2h
  atoll extend web never`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			var ttl atoll.Duration
			if err := ttl.UnmarshalText([]byte(args[1])); err != nil {
				return usagef("%v", err)
			}
			return a.eachSandbox(cmd, args[:1], func(ctx context.Context, sb atoll.Sandbox) error { return atoll.Extend(ctx, sb, ttl) })
		},
	}
}

func newRm(a *app) *cobra.Command {
	var all, volumes, force bool
	cmd := &cobra.Command{
		Use:   "rm [flags] SANDBOX...",
		Short: "Remove sandboxes, running or not",
		Long: `Rm ends and removes sandboxes. The data volume of each, which holds its work
directory, is kept for another sandbox of the same id, unless -v is given;
volumes that have a name are always kept.`,
		Example: `  atoll rm web
  atoll rm --all --volumes`,
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usagef("name the sandboxes to remove, or give --all, not both")
			}
			var opts []atoll.RemoveOption
			if volumes {
				opts = append(opts, atoll.RemoveVolumes())
			}
			return a.with(cmd, func(ctx context.Context, c *connection) error {
				if all {
					return a.removeAll(ctx, c, opts)
				}
				return a.each(args, func(ref string) error {
					sb, err := c.find(ctx, ref)
					if force && errors.Is(err, atoll.ErrNotFound) {
						return errNothing
					}
					if err != nil {
						return err
					}
					return sb.Remove(ctx, opts...)
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "remove every sandbox, or with --project all of that project")
	cmd.Flags().BoolVarP(&volumes, "volumes", "v", false, "remove their data volumes as well")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "say nothing of sandboxes that are not there")
	return cmd
}

func (a *app) removeAll(ctx context.Context, c *connection, opts []atoll.RemoveOption) error {
	project, err := a.project()
	if err != nil {
		return err
	}
	all, err := c.List(ctx, atoll.Filter{Project: project})
	if err != nil {
		return err
	}
	ids := make([]string, 0, len(all))
	for _, st := range all {
		ids = append(ids, st.ID)
	}
	return a.each(ids, func(id string) error {
		sb, err := c.Get(ctx, id)
		if errors.Is(err, atoll.ErrNotFound) {
			return nil // somebody else was faster
		}
		if err != nil {
			return err
		}
		return sb.Remove(ctx, opts...)
	})
}
