package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

// pruneFlags are the flags of atoll prune and atoll volume prune.
type pruneFlags struct {
	confirmation
	volumes    bool           // with the data volumes of the sandboxes, and of removed ones
	stoppedFor atoll.Duration // only sandboxes that stopped at least so long ago
	all        bool           // also named volumes and caches
}

func newPrune(a *app) *cobra.Command {
	var f pruneFlags
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove stopped sandboxes and unused images, after a question",
		Long: `Prune lists the sandboxes that have stopped or failed, asks, and removes them: those
of all projects, or with --project of one. The data volumes of those with a name
remain, as with atoll rm, unless --volumes is given; it also removes the data volumes
of sandboxes that were removed before. Named volumes always remain: see
atoll volume prune. Images without a name that nothing uses go, too.

Prune leaves the sandboxes of sessions and conversations alone, and those that were
never started. With --provider it removes only what that provider has. Without a
terminal it only lists, and fails, unless --force is given.`,
		Example: `  atoll prune
  atoll prune --stopped-for 72h --volumes`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error { return f.pruneAll(ctx, a, c) })
		},
	}
	cmd.Flags().BoolVar(&f.volumes, "volumes", false, "also remove data volumes of these and of removed sandboxes")
	cmd.Flags().Var((*durationValue)(&f.stoppedFor), "stopped-for", "remove only sandboxes that stopped at least so long ago, like 72h")
	f.confirmation.addFlags(cmd.Flags())
	return cmd
}

func newVolumePrune(a *app) *cobra.Command {
	f := pruneFlags{volumes: true}
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove the data volumes of removed sandboxes, after a question",
		Long: `Prune lists the data volumes of sandboxes that were removed, asks, and removes them:
those of all projects, or with --project of one. With --all it also removes named
volumes and caches that no sandbox mounts. A stopped sandbox uses its volumes.

A new sandbox with the same --id gets the data volume again, as does a conversation
whose sandbox is rebuilt. With --provider, prune removes only volumes of that
provider. Without a terminal it only lists, and fails, unless --force is given.`,
		Example: `  atoll volume prune
  atoll volume prune --all --project p1`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error { return f.pruneVolumes(ctx, a, c) })
		},
	}
	cmd.Flags().BoolVarP(&f.all, "all", "a", false, "also remove unused named volumes and caches")
	f.confirmation.addFlags(cmd.Flags())
	return cmd
}

// pruneAll removes stopped sandboxes, images without a name, and with --volumes data volumes.
func (f *pruneFlags) pruneAll(ctx context.Context, a *app, c *connection) error {
	sandboxes, err := f.listStopped(ctx, a, c)
	if err != nil {
		return err
	}
	var volumes []atoll.Volume
	if f.volumes {
		if volumes, err = f.listUnused(ctx, a, c); err != nil {
			return err
		}
	}
	var parts []string
	if len(sandboxes) > 0 {
		what := countOf(len(sandboxes), "sandbox", "sandboxes") + " with all files but the data volumes of those with a name"
		if f.volumes {
			what = countOf(len(sandboxes), "sandbox", "sandboxes") + " with all files"
		}
		if err := f.showPlan(a, sandboxTable(sandboxes, time.Now())); err != nil {
			return err
		}
		parts = append(parts, what)
	}
	if len(volumes) > 0 {
		if err := f.showPlan(a, volumeTable(volumes)); err != nil {
			return err
		}
		parts = append(parts, countOf(len(volumes), "volume", "volumes"))
	}
	parts = append(parts, "unused images without a name")
	if ok, err := f.askUser(ctx, a, "remove "+strings.Join(parts, ", and ")+"?"); !ok {
		return err
	}
	return errors.Join(
		f.removeStopped(ctx, a, c, sandboxes),
		removeVolumes(ctx, a, c, volumes),
		pruneUnnamedImages(ctx, a, c),
	)
}

// pruneVolumes removes unused volumes.
func (f *pruneFlags) pruneVolumes(ctx context.Context, a *app, c *connection) error {
	volumes, err := f.listUnused(ctx, a, c)
	if err != nil {
		return err
	}
	if len(volumes) == 0 {
		a.printMessage("no volume is unused%s", map[bool]string{false: "; --all includes named volumes and caches", true: ""}[f.all])
		return nil
	}
	if err := f.showPlan(a, volumeTable(volumes)); err != nil {
		return err
	}
	if ok, err := f.askUser(ctx, a, "remove "+countOf(len(volumes), "volume", "volumes")+" with all files?"); !ok {
		return err
	}
	return removeVolumes(ctx, a, c, volumes)
}

// showPlan prints what the user is asked about.
func (f *pruneFlags) showPlan(a *app, rows [][]string) error {
	if f.force {
		return nil // only what was removed is printed
	}
	return a.printTable(rows)
}

// listStopped returns the sandboxes to remove.
func (f *pruneFlags) listStopped(ctx context.Context, a *app, c *connection) ([]atoll.Status, error) {
	if f.stoppedFor < 0 {
		return nil, usageErrorf("stopped for %s: must not be negative", f.stoppedFor)
	}
	project, err := a.namedProject()
	if err != nil {
		return nil, err
	}
	all, err := c.List(ctx, atoll.Filter{Project: project, Provider: a.flags["provider"], States: []atoll.State{atoll.StateStopped, atoll.StateFailed}})
	return slices.DeleteFunc(all, func(st atoll.Status) bool {
		return hasOwner(st.Spec.Labels) || f.stoppedFor > 0 && (st.Stopped.IsZero() || time.Since(st.Stopped) < time.Duration(f.stoppedFor))
	}), err
}

// listUnused returns the volumes to remove.
func (f *pruneFlags) listUnused(ctx context.Context, a *app, c *connection) ([]atoll.Volume, error) {
	project, err := a.namedProject()
	if err != nil {
		return nil, err
	}
	all, err := atoll.Volumes(ctx, c.Provider, project)
	if err != nil {
		return nil, err
	}
	provider := a.flags["provider"]
	return slices.DeleteFunc(all, func(v atoll.Volume) bool {
		return v.InUse || v.Sandbox == "" && !f.all || provider != "" && v.Provider != provider
	}), nil
}

// removeStopped removes sandboxes, except those that were started since they were listed.
func (f *pruneFlags) removeStopped(ctx context.Context, a *app, c *connection, all []atoll.Status) error {
	data := dataOfUnnamed
	if f.volumes {
		data = allData
	}
	names, statuses := nameSandboxes(c, all)
	return a.forEach(names, func(name string) error {
		sb, err := c.Get(ctx, statuses[name].ID)
		if errors.Is(err, atoll.ErrNotFound) {
			return errNothing // another program was faster
		}
		if err != nil {
			return err
		}
		st, err := sb.Status(ctx)
		if err != nil {
			return err
		}
		if st.State != atoll.StateStopped && st.State != atoll.StateFailed {
			return errNothing // it was started meanwhile
		}
		return sb.Remove(ctx, data.removeOptions(&st)...)
	})
}

// removeVolumes removes volumes, and prints their names.
func removeVolumes(ctx context.Context, a *app, c *connection, volumes []atoll.Volume) error {
	var errs []error
	for _, v := range volumes {
		same := func(o atoll.Volume) bool {
			return o.Project == v.Project && o.Name == v.Name && o.Provider != v.Provider
		}
		name := v.Name
		if slices.ContainsFunc(volumes, same) {
			name = v.Provider + "=" + v.Name
		}
		if err := atoll.RemoveVolume(ctx, c.Provider, v.Project, name); err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintln(a.stdout, v.Name)
	}
	return errors.Join(errs...)
}

// pruneUnnamedImages removes images without a name, and prints how much space that freed.
func pruneUnnamedImages(ctx context.Context, a *app, c *connection) error {
	pruned, err := atoll.PruneImages(ctx, c.Provider, atoll.PruneOptions{Provider: a.flags["provider"]})
	if atoll.KindOf(err) == atoll.ErrUnsupported || atoll.KindOf(err) == atoll.ErrDenied {
		return nil // there are no images, or only an administrator may remove them
	}
	if err == nil && len(pruned.Images) > 0 {
		a.printMessage("%s removed, %s freed", countOf(len(pruned.Images), "image", "images"), byteCount(int64(pruned.Size)))
	}
	return err
}

func volumeTable(volumes []atoll.Volume) [][]string {
	rows := [][]string{{"VOLUME", "PROJECT", "PROVIDER", "CREATED"}}
	slices.SortStableFunc(volumes, func(x, y atoll.Volume) int { return cmp.Compare(x.Project, y.Project) })
	for _, v := range volumes {
		rows = append(rows, []string{v.Name, v.Project, v.Provider, formatAgo(time.Since(v.Created))})
	}
	return rows
}

// countOf returns n with the singular or the plural of a noun.
func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
