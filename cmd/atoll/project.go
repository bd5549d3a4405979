package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

func newProject(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "project", Short: "List projects, and remove them with everything they have"}
	cmd.AddCommand(newProjectLs(a), newProjectRm(a))
	return cmd
}

func newProjectLs(a *app) *cobra.Command {
	l := listFlags{ifEmpty: "no project has a machine or a disk; any --project NAME is valid"}
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List projects with a machine or a disk",
		Long: `Ls lists the projects that have a virtual machine or a disk of their own, as with
the provider vmdocker: the state of the machine, the number of sandboxes, and the
space that the disk takes on this machine. It starts no machine. A machine that
stopped because nothing ran in it starts at the next use.`,
		Example: `  atoll project ls
  atoll project ls -q`,
		Aliases:           []string{"list"},
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				all, err := atoll.Projects(ctx, c.Provider)
				if err != nil {
					return err
				}
				return printList(a, l, all, func(p atoll.Project) string { return p.Name },
					[]string{"PROJECT", "PROVIDER", "MACHINE", "SANDBOXES", "DISK"},
					func(p atoll.Project) []string {
						return []string{p.Name, p.Provider, cmp.Or(string(p.Machine), "none"), strconv.Itoa(p.Sandboxes), byteCount(int64(p.Disk))}
					})
			})
		},
	}
	l.addFlags(cmd, "print names only")
	return cmd
}

func newProjectRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm PROJECT...",
		Short: "Remove projects with everything they have",
		Long: `Rm removes all sandboxes of a project, running or not, with all its volumes,
workspaces and sessions, and its virtual machine with the disk, if it has one. A
project that has nothing is an error.`,
		Example: `  atoll project rm p1
  atoll rm --all -v --project p1    # its sandboxes only`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeProjects,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				known, err := listProjects(ctx, c)
				if err != nil {
					return err
				}
				return a.forEach(args, func(name string) error {
					err := atoll.RemoveProject(ctx, c.Provider, name)
					if err == nil && !slices.Contains(known, name) {
						err = notThere(nearestTo(name, known), "no project %s", name)
					}
					return err
				})
			})
		},
	}
}

// completeProjects completes projects that have anything.
func (a *app) completeProjects(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.completeWith(cmd, args, listProjects)
}

// listProjects returns the names of all projects that have anything which RemoveProject removes.
func listProjects(ctx context.Context, c *connection) (names []string, err error) {
	all, err := c.List(ctx, atoll.Filter{})
	for _, st := range all {
		names = append(names, st.Spec.Project)
	}
	errs := []error{err}
	volumes, err := atoll.Volumes(ctx, c.Provider, "")
	for _, v := range volumes {
		names = append(names, v.Project)
	}
	errs = append(errs, err)
	workspaces, err := workspace.List(ctx, c.Provider, "")
	for _, w := range workspaces {
		names = append(names, w.Project)
	}
	errs = append(errs, err)
	sessions, err := session.List(ctx, c.Provider, "")
	for _, s := range sessions {
		names = append(names, s.Project)
	}
	errs = append(errs, err)
	projects, err := atoll.Projects(ctx, c.Provider)
	for _, p := range projects {
		names = append(names, p.Name)
	}
	errs = append(errs, err)
	for i, err := range errs {
		if atoll.KindOf(err) == atoll.ErrUnsupported { // the provider has none
			errs[i] = nil
		}
	}
	slices.Sort(names)
	return slices.Compact(names), errors.Join(errs...)
}
