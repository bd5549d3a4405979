package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

func newProject(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "project", Short: "Remove projects with all that they have"}
	cmd.AddCommand(newProjectRm(a))
	return cmd
}

func newProjectRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm PROJECT...",
		Short: "Remove projects with all that they have",
		Long: `Rm removes all sandboxes of a project, running or not, with all its volumes,
workspaces and sessions, and where it has a virtual machine of its own that, with
its disk. It is no error if a project has nothing.`,
		Example: `  atoll project rm p1
  atoll rm --all -v --project p1    # its sandboxes only`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeProjects,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, func(ctx context.Context, c *connection) error {
				return a.each(args, func(name string) error { return atoll.RemoveProject(ctx, c.Provider, name) })
			})
		},
	}
}

// completeProjects offers the projects that have sandboxes or volumes.
func (a *app) completeProjects(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, args, func(ctx context.Context, c *connection) (names []string, err error) {
		all, err := c.List(ctx, atoll.Filter{})
		if err != nil {
			return nil, err
		}
		for _, st := range all {
			names = append(names, st.Spec.Project)
		}
		volumes, err := atoll.Volumes(ctx, c.Provider, "")
		for _, v := range volumes {
			names = append(names, v.Project)
		}
		slices.Sort(names)
		return slices.Compact(names), err
	})
}
