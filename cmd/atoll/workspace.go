package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

func newWorkspace(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workspace",
		Short: "Manage the directories and git repositories that sandboxes work on",
		Long: `A workspace is a directory, which sandboxes use in place (at ` + workspace.Dir + `), or
a git repository, which is cloned once, and of which each sandbox has a checkout
of its own (in ` + atoll.DefaultWorkdir + `), always of the same commit until the workspace is updated.

A git worktree or a submodule is at its own path instead, and its repository, which
is elsewhere, is shown too, so that git works; hooks and settings of the repository
are read-only. When a command has changed what git or an editor of this machine runs
(hooks, settings, .envrc), run and exec say so.

New files in a directory belong to the user of the sandbox; -u UID:GID chooses
another. Commits have the author of this machine's git; -e GIT_AUTHOR_NAME=...
chooses another.`,
	}
	cmd.AddCommand(newWorkspaceAdd(a), newWorkspaceLs(a), newWorkspaceUpdate(a), newWorkspaceRm(a))
	return cmd
}

func newWorkspaceAdd(a *app) *cobra.Command {
	var spec workspace.Spec
	var quiet bool
	cmd := &cobra.Command{
		Use:   "add [flags] NAME SOURCE",
		Short: "Create a workspace of a directory or a git repository, and print its commit",
		Long: `Add creates a workspace. The source is a path, which is used in place, or the
address of a git repository (https, http, ssh, git, file, or host:path), which is
cloned; with --commit a path is that of a repository, too. Git does not prompt for
passwords: use a credential helper or an SSH agent.`,
		Example: `  atoll workspace add here .
  atoll workspace add lib https://example.com/lib.git --commit v1.2`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			spec.Name = args[0]
			if spec.Source, err = absSource(args[1]); err != nil {
				return err
			}
			return a.onWorkspace(cmd, quiet, func(ctx context.Context, c *connection, progress func(atoll.Progress)) (workspace.Workspace, error) {
				spec.Project = c.project
				return workspace.Add(ctx, c.Provider, &spec, progress)
			})
		},
	}
	cmd.Flags().StringVar(&spec.Revision, "commit", "", "`commit`, branch or tag to clone (default the default branch)")
	cmd.Flags().BoolVar(&spec.ReadOnly, "read-only", false, "keep sandboxes from writing to the directory")
	registerQuiet(cmd.Flags(), &quiet)
	return cmd
}

func newWorkspaceUpdate(a *app) *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:               "update [flags] WORKSPACE",
		Short:             "Update a workspace for new sandboxes, and print its commit",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeWorkspaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onWorkspace(cmd, quiet, func(ctx context.Context, c *connection, progress func(atoll.Progress)) (workspace.Workspace, error) {
				return workspace.Update(ctx, c.Provider, c.project, args[0], progress)
			})
		},
	}
	registerQuiet(cmd.Flags(), &quiet)
	return cmd
}

// onWorkspace calls do with a progress bar, and prints the commit of the workspace, if it has one.
func (a *app) onWorkspace(cmd *cobra.Command, quiet bool, do func(context.Context, *connection, func(atoll.Progress)) (workspace.Workspace, error)) error {
	return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
		w, err := a.showProgress(quiet, func(progress func(atoll.Progress)) (workspace.Workspace, error) { return do(ctx, c, progress) })
		if err != nil || w.Commit == "" {
			return err
		}
		_, err = fmt.Fprintln(a.stdout, w.Commit)
		return err
	})
}

// showProgress calls do and shows its progress.
func (a *app) showProgress(quiet bool, do func(func(atoll.Progress)) (workspace.Workspace, error)) (workspace.Workspace, error) {
	show, end := a.startProgress(quiet)
	defer end()
	return do(show)
}

func newWorkspaceLs(a *app) *cobra.Command {
	l := listFlags{ifEmpty: "no workspaces yet: atoll workspace add NAME SOURCE creates one"}
	cmd := &cobra.Command{
		Use:               "ls [flags]",
		Aliases:           []string{"list"},
		Short:             "List workspaces of all projects, or with --project of one",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				project, err := a.namedProject()
				if err != nil {
					return err
				}
				all, err := workspace.List(ctx, c.Provider, project)
				if err != nil {
					return err
				}
				return printList(a, l, all, func(w workspace.Workspace) string { return w.Name },
					[]string{"NAME", "PROJECT", "SOURCE", "STATE", "COMMIT", "IN USE", "CREATED"},
					func(w workspace.Workspace) []string {
						return []string{w.Name, w.Project, w.Source, workspaceState(w), w.Commit[:min(12, len(w.Commit))], yesNo(w.InUse), formatAgo(time.Since(w.Created))}
					})
			})
		},
	}
	l.addFlags(cmd, "print names only")
	return cmd
}

// workspaceState describes the state, with its error or progress.
func workspaceState(w workspace.Workspace) string {
	state := string(w.State)
	if more := strings.TrimSpace(w.Progress + " " + w.Error); more != "" {
		state += " (" + more + ")"
	}
	return state
}

func newWorkspaceRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "rm WORKSPACE...",
		Short:             "Remove unused workspaces, and delete their clones",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeWorkspaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				return a.forEach(args, func(name string) error { return workspace.Remove(ctx, c.Provider, c.project, name) })
			})
		},
	}
}

// completeWorkspaces completes the workspaces of the project.
func (a *app) completeWorkspaces(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.completeWith(cmd, args, func(ctx context.Context, c *connection) (names []string, err error) {
		all, err := workspace.List(ctx, c.Provider, c.project)
		for _, w := range all {
			names = append(names, w.Name)
		}
		return names, err
	})
}

// absSource makes the path of a source absolute. Addresses have a colon before any slash.
func absSource(s string) (string, error) {
	if before, _, _ := strings.Cut(s, "/"); strings.Contains(before, ":") {
		return s, nil
	}
	return filepath.Abs(s)
}

// parseWorkspace parses the value of --workspace: a name, a path with a slash (or . or ..), or an address.
func parseWorkspace(s string) (atoll.WorkspaceRef, error) {
	if s == "" || atoll.ValidName(s) {
		return atoll.WorkspaceRef{Name: s}, nil
	}
	source, err := absSource(s)
	return atoll.WorkspaceRef{Source: source}, err
}

// gitIdentity returns the variables of the author of commits in a workspace: the user of this machine, from env or from
// git's configuration for dir. It leaves out what is not set.
func gitIdentity(env []string, dir string) []string {
	cmd := exec.Command("git", "config", "--null", "--get-regexp", `^user\.(name|email)$`)
	cmd.Env = env
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		cmd.Dir = dir
	}
	out, _ := cmd.Output() // fails if nothing is set, or git is not installed
	user, ours := map[string]string{}, map[string]string{}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		ours[name] = value
	}
	for setting := range strings.SplitSeq(string(out), "\x00") {
		key, value, _ := strings.Cut(setting, "\n")
		user[key] = value // the last one counts
	}
	var vars []string
	for _, role := range []string{"AUTHOR", "COMMITTER"} {
		for _, field := range []string{"name", "email"} {
			name := "GIT_" + role + "_" + strings.ToUpper(field)
			if value := cmp.Or(ours[name], user["user."+field]); value != "" {
				vars = append(vars, name+"="+value)
			}
		}
	}
	return vars
}
