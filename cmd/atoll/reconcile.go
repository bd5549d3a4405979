package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/layer/registry"
)

func newReconcile(a *app) *cobra.Command {
	var opts registry.ReconcileOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reconcile [flags]",
		Short: "Compare sandboxes with the desired state and repair differences",
		Long: `Reconcile completes interrupted work, forgets sandboxes that disappeared, and
repairs the rest: failed sandboxes (reconcile.failed: keep, restart, rebuild),
those whose image has a newer version here (reconcile.outdated: rebuild, keep), and
those of this state directory without a record (reconcile.orphans: remove, keep).
Data volumes are retained. A running server does this by itself.

A sandbox in which commands run is only rebuilt with --force, which ends them.
Reconcile prints its findings and actions, and nothing if all is well. The exit
code is 1 if an action failed.`,
		Example: `  atoll reconcile --dry-run
  atoll reconcile --force`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				sum, err := registry.Reconcile(ctx, c.Provider, opts)
				if err != nil {
					return err
				}
				if asJSON {
					sum.Findings = orEmpty(sum.Findings)
					err = a.printJSON(sum)
				} else {
					err = a.printFindings(sum)
				}
				if err == nil && anyFailed(sum) {
					err = exitError(1)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&opts.DryRun, "dry-run", "n", false, "change nothing, and print the planned actions")
	cmd.Flags().BoolVarP(&opts.Force, "force", "f", false, "also rebuild sandboxes in which commands run")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func anyFailed(sum registry.Reconciliation) bool {
	for _, f := range sum.Findings {
		if f.Failed {
			return true
		}
	}
	return false
}

func (a *app) printFindings(sum registry.Reconciliation) error {
	if len(sum.Findings) == 0 {
		return nil
	}
	rows := [][]string{{"ID", "NAME", "PROJECT", "FOUND", "DONE", "REASON"}}
	for _, f := range sum.Findings {
		done := string(f.Done)
		if f.Failed {
			done = "failed"
		}
		rows = append(rows, []string{shortID(f.ID), f.Name, f.Project, string(f.Found), done, f.Reason})
	}
	return a.printTable(rows)
}

func newSecret(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "secret SANDBOX",
		Short: "Print the secret by which programs in a sandbox authenticate callers",
		Long: `Secret prints the bearer token for a program in the sandbox that requires one.
Inside, the variable ATOLL_SECRET has a salted hash of it: SALT:SUM, where SUM is
the SHA-256 of the salt's bytes and the secret's text.`,
		Example:           `  curl -H "Authorization: Bearer $(atoll secret web)" 127.0.0.1:8080/`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSandbox(cmd, args[0], func(ctx context.Context, c *connection, sb atoll.Sandbox) error {
				raw, err := atoll.SecretOf(ctx, c.Provider, sb.ID())
				if err == nil {
					_, err = fmt.Fprintln(a.stdout, raw)
				}
				return err
			})
		},
	}
}

// firstRoundTimeout is the time that a starting server waits for its first round of reconciliation. Callers wait
// meanwhile, and most of them then find all repaired.
const firstRoundTimeout = 5 * time.Second

// keepReconciled reconciles now and periodically. It returns after the first round, or after firstRoundTimeout. The
// returned function waits for the last round, once ctx has ended.
func (a *app) keepReconciled(ctx context.Context, p atoll.Provider, cfg *config.Config, log *slog.Logger) (wait func()) {
	first, last := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(last)
		reconcileOnce(ctx, p, cfg, log)
		close(first)
		for every := time.Duration(cfg.Reconcile.Every); every > 0; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(every):
				reconcileOnce(ctx, p, cfg, log)
			}
		}
	}()
	select {
	case <-first:
	case <-time.After(firstRoundTimeout):
		log.Warn("reconcile: takes long, and continues in the background")
	}
	return func() { <-last }
}

// reconcileOnce runs one round of a server.
func reconcileOnce(ctx context.Context, p atoll.Provider, cfg *config.Config, log *slog.Logger) {
	sum, err := registry.Reconcile(ctx, p, registry.ReconcileOptions{})
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, atoll.ErrUnsupported) {
		log.Error("reconcile", "err", err)
	}
	for _, f := range sum.Findings {
		level := slog.LevelInfo
		if f.Failed || f.Done == registry.DoneNothing || f.Found == registry.FoundMissing {
			level = slog.LevelWarn
		}
		log.Log(ctx, level, "reconcile", "sandbox", f.ID, "name", f.Name, "found", f.Found, "done", f.Done, "failed", f.Failed, "reason", f.Reason)
	}
	if cfg.Image.Prune == 0 || ctx.Err() != nil {
		return
	}
	pruned, err := atoll.PruneImages(ctx, p, atoll.PruneOptions{UnusedFor: cfg.Image.Prune})
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, atoll.ErrUnsupported) {
		log.Warn("prune images", "err", err)
	}
	if len(pruned.Images) > 0 {
		log.Info("prune images", "removed", len(pruned.Images), "bytes", int64(pruned.Size))
	}
}
