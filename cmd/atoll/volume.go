package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

func newVolume(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "volume", Short: "List and remove volumes, which outlive sandboxes"}
	cmd.AddCommand(newVolumeLs(a), newVolumeRm(a), newVolumePrune(a))
	return cmd
}

func newVolumeLs(a *app) *cobra.Command {
	l := listFlags{ifEmpty: "no volumes yet: atoll create -v NAME:/work/data creates one"}
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List volumes of all projects, or with --project of one",
		Long: `Ls lists named volumes, the data volumes of sandboxes, which are named data- and
the sandbox's id, and the caches of projects, which are named .cache.`,
		Aliases:           []string{"list"},
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				project, err := a.namedProject()
				if err != nil {
					return err
				}
				all, err := atoll.Volumes(ctx, c.Provider, project)
				if err != nil {
					return err
				}
				return printList(a, l, all, func(v atoll.Volume) string { return v.Name },
					[]string{"NAME", "PROJECT", "PROVIDER", "IN USE", "CREATED"},
					func(v atoll.Volume) []string {
						return []string{v.Name, v.Project, v.Provider, yesNo(v.InUse), formatAgo(time.Since(v.Created))}
					})
			})
		},
	}
	l.addFlags(cmd, "print names only")
	return cmd
}

func newVolumeRm(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm [flags] VOLUME...",
		Short: "Remove unused volumes of a project",
		Long: `Rm removes volumes of a project that no sandbox uses. If several providers have a
volume of that name, --provider selects one.`,
		Example: `  atoll volume rm data
  atoll volume rm .cache    # empties the cache of the project`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeVolumes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				return a.forEach(args, func(name string) error {
					err := atoll.RemoveVolume(ctx, c.Provider, c.project, a.qualifyName(name))
					if force && atoll.KindOf(err) == atoll.ErrNotExist {
						return errNothing
					}
					return err
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "ignore missing volumes")
	return cmd
}

// qualifyName adds the provider of the flag, if any, to the name of an image or a volume.
func (a *app) qualifyName(name string) string {
	if provider := a.flags["provider"]; provider != "" {
		return provider + "=" + name
	}
	return name
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
