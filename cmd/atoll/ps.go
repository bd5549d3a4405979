package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

func newPs(a *app) *cobra.Command {
	var quiet, asJSON bool
	cmd := &cobra.Command{
		Use:               "ps [flags] SANDBOX",
		Short:             "List the processes of a sandbox",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSandbox(cmd, args[0], func(ctx context.Context, _ *connection, sb atoll.Sandbox) error {
				all, err := atoll.Processes(ctx, sb)
				switch {
				case err != nil:
					return err
				case asJSON:
					return a.printJSON(orEmpty(all))
				case quiet:
					for _, p := range all {
						fmt.Fprintln(a.stdout, p.ID)
					}
					return nil
				}
				return a.printTable(processTable(all, time.Now()))
			})
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

func processTable(all []atoll.ProcessStatus, now time.Time) [][]string {
	rows := [][]string{{"ID", "PID", "STATE", "STARTED", "COMMAND"}}
	for _, p := range all {
		pid, state := "-", "running"
		if p.PID != 0 {
			pid = strconv.Itoa(p.PID)
		}
		if p.Exit != nil {
			state = p.Exit.String()
		}
		rows = append(rows, []string{p.ID, pid, state, formatAgo(now.Sub(p.Started)), orDash(shownCommand(p.Args))})
	}
	return rows
}

func newKill(a *app) *cobra.Command {
	name := "KILL"
	cmd := &cobra.Command{
		Use:               "kill [flags] SANDBOX [PROCESS]",
		Short:             "Send a signal to a process: the main one, or one that ps lists",
		Example:           "  atoll kill -s HUP web",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeProcess,
		RunE: func(cmd *cobra.Command, args []string) error {
			sig, err := atoll.ParseSignal(name)
			if err != nil {
				return usageErrorf("%w", err)
			}
			return a.withSandbox(cmd, args[0], func(ctx context.Context, _ *connection, sb atoll.Sandbox) error {
				p, err := processOf(ctx, sb, "kill", args[0], processArg(args))
				if err != nil {
					return err
				}
				err = p.Signal(ctx, sig)
				if atoll.KindOf(err) == atoll.ErrStopped {
					return atoll.Errorf("kill", args[0], atoll.ErrStopped, "%w", causeOf(err))
				}
				return err
			})
		},
	}
	cmd.Flags().StringVarP(&name, "signal", "s", name, "`signal` to send, by name or number")
	return cmd
}
