package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
)

func newSession(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "Manage sandboxes that workflows, agents and conversations share",
		Long: `A session binds a scope, such as the run of a workflow, to a sandbox of its own:
all callers that open it get the same sandbox, until the run ends, the sandbox is
idle for too long, or its lifetime is over. A scope is written KIND/ID, with the
KIND workflow, agent, session or conversation. A session is named by its scope, or
by its key, as in workflow_ID_sandbox.`,
	}
	cmd.AddCommand(newSessionOpen(a), newSessionLs(a), newSessionClose(a), newSessionEnd(a))
	return cmd
}

func newSessionOpen(a *app) *cobra.Command {
	var f specFlags
	var spec session.Spec
	cmd := &cobra.Command{
		Use:   "open [flags] SCOPE",
		Short: "Open a session, and print the id of its sandbox",
		Long: `Open prints the id of the sandbox of a scope. If there is none, open creates it as
the flags say. It starts a stopped sandbox again, and replaces a missing one with a
note on stderr.`,
		Example: `  atoll session open workflow/wf_abc123
  atoll exec $(atoll session open workflow/wf_abc123) -- make test
  atoll session end workflow/wf_abc123`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if spec.Scope, err = session.ParseScope(args[0]); err != nil {
				return usageError{err}
			}
			box, err := f.buildSpec(cmd.Context(), a, nil)
			if err != nil {
				return err
			}
			spec.Project, box.Project = box.Project, ""
			spec.Sandbox = *box
			return a.openSession(cmd, &spec, f.quiet)
		},
	}
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.addFlags(all)
	all.VisitAll(func(flag *pflag.Flag) {
		if !slices.Contains(sessionsOwn, flag.Name) {
			cmd.Flags().AddFlag(flag)
		}
	})
	cmd.Flags().StringVar(&spec.Workflow, "workflow", "", "`id` of a workflow run whose end also ends the session")
	sessionTimes(cmd.Flags(), &spec.IdleTimeout, &spec.MaxLifetime)
	groupFlags(cmd.Flags())
	return cmd
}

// sessionTimes adds the flags for the end of sessions.
func sessionTimes(flags *pflag.FlagSet, idle, lifetime *atoll.Duration) {
	flags.Var((*idleValue)(idle), "idle-timeout", "end the session when its sandbox has been idle for so long, like 30m; 0 for never (default session.idle_timeout)")
	flags.Var((*idleValue)(lifetime), "max-lifetime", "end the session after so long, even if in use, like 4h; 0 for no limit (default session.max_lifetime)")
}

// sessionsOwn are the flags of a sandbox that sessions replace by their own, or set themselves.
var sessionsOwn = []string{"id", "ttl", "idle-stop", "idle-remove"}

func (a *app) openSession(cmd *cobra.Command, spec *session.Spec, quiet bool) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	cfg.SetSessionTimes(&spec.IdleTimeout, &spec.MaxLifetime)
	return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
		if err := c.requireSurvival(); err != nil {
			return err
		}
		if err := a.prepareSandbox(ctx, c, &spec.Sandbox, quiet); err != nil {
			return err
		}
		o, err := session.Open(ctx, c.Provider, spec)
		if err != nil {
			return err
		}
		if o.Note != "" {
			a.printMessage("%s", o.Note)
		}
		if image := spec.Sandbox.Image; image != "" && image != o.Spec.Image {
			a.printMessage("the session uses %s: to use %s, close it first, which removes its files", cmp.Or(o.Spec.Image, "the default image"), image)
		}
		_, err = fmt.Fprintln(a.stdout, o.Sandbox)
		return err
	})
}

func newSessionLs(a *app) *cobra.Command {
	l := listFlags{ifEmpty: "no sessions are open: atoll session open workflow/NAME opens one"}
	cmd := &cobra.Command{
		Use:               "ls [flags]",
		Aliases:           []string{"list"},
		Short:             "List sessions of all projects, or with --project of one",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				project, err := a.namedProject()
				if err != nil {
					return err
				}
				all, err := session.List(ctx, c.Provider, project)
				if err != nil {
					return err
				}
				return printList(a, l, all, func(s session.Session) string { return s.Key },
					[]string{"SESSION", "PROJECT", "SANDBOX", "STATE", "OPENED", "EXPIRES"},
					func(s session.Session) []string {
						return []string{s.Key, s.Project, s.Sandbox, sessionState(s), formatAgo(time.Since(s.Opened)), formatUntil(s.Expires)}
					})
			})
		},
	}
	l.addFlags(cmd, "print keys only")
	return cmd
}

// sessionState describes the state, with the problem if there is one.
func sessionState(s session.Session) string {
	if s.Problem == "" {
		return string(s.State)
	}
	return string(s.State) + " (" + s.Problem + ")"
}

// formatUntil returns the time until at, or "never" if at is zero.
func formatUntil(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return "in " + time.Until(at).Round(time.Second).String()
}

func newSessionClose(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "close SESSION...",
		Short: "Close sessions, and remove their sandboxes with their files",
		Long: `Close removes the sandbox of each session, with its files. If that fails, the
session remains listed as closing, and the removal is repeated.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				return a.forEach(args, func(name string) error {
					scope, err := session.ParseScope(name)
					if err != nil {
						return usageError{err}
					}
					return session.Close(ctx, c.Provider, c.project, scope.Key())
				})
			})
		},
	}
}

func newSessionEnd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "end SCOPE",
		Short: "Close the sessions of a run that has ended, and print their keys",
		Long: `End closes the session of a scope, and for a workflow those of its agents. A workflow
calls it at its end. If there is no such session, the exit code is 1.`,
		Example:           `  atoll session end workflow/wf_abc123`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, err := session.ParseScope(args[0])
			if err != nil {
				return usageError{err}
			}
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				closed, err := session.EndScope(ctx, c.Provider, c.project, scope)
				for _, key := range closed {
					fmt.Fprintln(a.stdout, key)
				}
				if err == nil && len(closed) == 0 {
					err = notThere("", "project %s has no session of %s", c.project, args[0])
				}
				return err
			})
		},
	}
}

// completeSessions completes the sessions of the project.
func (a *app) completeSessions(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.completeWith(cmd, args, func(ctx context.Context, c *connection) (names []string, err error) {
		all, err := session.List(ctx, c.Provider, c.project)
		for _, s := range all {
			names = append(names, s.Key)
		}
		return names, err
	})
}
