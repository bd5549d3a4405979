//go:build !client

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/agentgit"
	"github.com/seed46cd37a8/atoll/internal/printable"
)

// newDeskCommand returns a command about one agent.
func (a *app) newDeskCommand(use, short, long string, do func(ctx context.Context, c *connection, d *desk) error) *cobra.Command {
	return &cobra.Command{
		Use: use + " NAME", Short: short, Long: long,
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeDesks,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := a.openDesk(args[0])
			if err != nil {
				return err
			}
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error { return do(ctx, c, d) })
		},
	}
}

func newAgentLs(a *app) *cobra.Command {
	l := listFlags{ifEmpty: "no agents yet: atoll agent claude starts one in a git repository"}
	cmd := &cobra.Command{
		Use: "ls [flags]", Short: "List agents and their work", Aliases: []string{"list"}, Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := a.listDesks()
			if err != nil {
				return err
			}
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				return printList(a, l, all, func(d *desk) string { return d.Name }, []string{"NAME", "AGENT", "STATE", "BRANCH", "REPOSITORY"}, func(d *desk) []string {
					branch := ""
					if d.Work != nil {
						branch = d.Work.Branch
					}
					return []string{d.Name, d.Agent, d.describeState(ctx, c), branch, d.Dir}
				})
			})
		},
	}
	l.addFlags(cmd, "print names only")
	return cmd
}

// describeState returns the state of an agent: working, done with its exit code, or that of its sandbox.
func (d *desk) describeState(ctx context.Context, c *connection) string {
	sb, err := c.Get(ctx, d.Sandbox)
	if err != nil {
		return "gone"
	}
	st, err := sb.Status(ctx)
	if err != nil || st.State != atoll.StateRunning {
		return cmp.Or(string(st.State), "gone")
	}
	p, err := sb.Process(ctx, d.Process)
	if err != nil {
		return "done"
	}
	ps, err := statusOf(ctx, sb, p)
	if err == nil && ps.Exit != nil {
		return fmt.Sprintf("done (%d)", ps.Exit.Code)
	}
	return "working"
}

func newAgentDiff(a *app) *cobra.Command {
	var stat bool
	cmd := a.newDeskCommand("diff [flags]", "Show the changes of an agent", `Diff shows what the agent has changed since it began, with and without commits, while it
works or after its end. Names of files that programs of this machine run without being
asked, which apply holds back, follow on stderr.`, func(ctx context.Context, c *connection, d *desk) error {
		repo, err := d.findRepo(ctx)
		if err != nil {
			return err
		}
		commit, err := d.takeWork(ctx, c, repo)
		if err != nil {
			return err
		}
		var text bytes.Buffer
		if err := repo.Diff(ctx, d.Work.Base, commit, stat, &text); err != nil {
			return err
		}
		out := text.String()
		if isTerminal(a.stdout) { // the agent could write what a terminal obeys
			out = printable.Escape(out, "\n\t")
		}
		if _, err := a.stdout.WriteString(out); err != nil {
			return err
		}
		changes, err := repo.ListChanges(ctx, d.Work.Base, commit)
		if err == nil {
			a.printHeld(d, heldOf(changes))
		}
		return err
	})
	cmd.Flags().BoolVar(&stat, "stat", false, "show the numbers of lines only")
	return cmd
}

// heldOf returns the changes with a reason to hold them back.
func heldOf(changes []agentgit.Change) (held []agentgit.Change) {
	for _, c := range changes {
		if c.Why != "" {
			held = append(held, c)
		}
	}
	return held
}

// printHeld says what is held back.
func (a *app) printHeld(d *desk, held []agentgit.Change) {
	for _, line := range describeHeld(held) {
		a.printMessage("held back: %s", line)
	}
	if len(held) > 0 {
		a.printMessage("look at these, and take one with: atoll agent apply --include PATH %s", d.Name)
	}
}

func newAgentApply(a *app) *cobra.Command {
	var opts agentgit.Options
	cmd := a.newDeskCommand("apply [flags]", "Take the changes of an agent into your repository", `Apply merges the commits of the agent into the branch that is checked out in your
repository, with a commit for what the agent has not committed. --patch changes your
files only. It never touches changes of yours that no commit has, and changes nothing if
you and the agent have changed the same lines.

It holds back files that programs of this machine run or obey without being asked, such
as .envrc, .vscode, .gitattributes and workflows of GitHub; the rest is then one commit.
--include takes one of them all the same.`, func(ctx context.Context, c *connection, d *desk) error {
		repo, err := d.findRepo(ctx)
		if err != nil {
			return err
		}
		commit, err := d.takeWork(ctx, c, repo)
		if err != nil {
			return err
		}
		opts.Name = d.Name
		res, err := repo.Apply(ctx, d.Work.Base, commit, opts)
		if err != nil {
			return err
		}
		switch {
		case !res.Changed && len(res.Held) == 0:
			a.printMessage("nothing to apply")
		case !res.Changed:
			a.printMessage("nothing to apply but what is held back")
		case opts.Patch:
			a.printMessage("changed your files in %s", repo.Dir)
		default:
			a.printMessage("%s is at %.12s now", cmp.Or(repo.Branch, "HEAD"), res.Commit)
		}
		a.printHeld(d, res.Held)
		return nil
	})
	cmd.Flags().BoolVar(&opts.Patch, "patch", false, "change files only, without a commit")
	cmd.Flags().StringArrayVar(&opts.Include, "include", nil, "take this `path`, which is held back otherwise")
	return cmd
}

func newAgentAttach(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "attach NAME", Short: "Connect to an agent that works", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeDesks,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := a.openDesk(args[0])
			if err != nil {
				return err
			}
			return a.attachProcess(cmd, d.Sandbox, d.Process, atoll.FromNow, defaultKeys(), true)
		},
	}
}

func newAgentLogs(a *app) *cobra.Command {
	return a.newDeskCommand("logs", "Print what an agent has printed", "", func(ctx context.Context, c *connection, d *desk) error {
		sb, err := c.Get(ctx, d.Sandbox)
		if err != nil {
			return err
		}
		p, err := processOf(ctx, sb, "logs", d.Name, d.Process)
		if err != nil {
			return err
		}
		return p.Attach(ctx, &atoll.Attachment{Stdout: a.stdout, Stderr: a.stderr, NoFollow: true})
	})
}

func newAgentStop(a *app) *cobra.Command {
	return a.newDeskCommand("stop", "End an agent, and retain its work", "", func(ctx context.Context, c *connection, d *desk) error {
		sb, err := c.Get(ctx, d.Sandbox)
		if err != nil {
			return err
		}
		return sb.Stop(ctx, atoll.DefaultStopGrace)
	})
}

func newAgentDiscard(a *app) *cobra.Command {
	var f confirmation
	cmd := a.newDeskCommand("discard [flags]", "Remove an agent and its work", `Discard ends the agent, and removes its sandbox, its worktree and its branch. Your
repository retains the changes that apply has taken. The home directory of the agent, with its
conversations, remains for the next one: atoll volume ls lists it.`, func(ctx context.Context, c *connection, d *desk) error {
		ok, err := f.askUser(ctx, a, fmt.Sprintf("remove %s with all of its work that you have not taken?", d.Name))
		if !ok || err != nil {
			return err
		}
		return a.discardDesk(ctx, c, d)
	})
	f.addFlags(cmd.Flags())
	return cmd
}

// discardDesk removes an agent with everything that belongs to it.
func (a *app) discardDesk(ctx context.Context, c *connection, d *desk) error {
	var errs []error
	if d.Sandbox != "" {
		sb, err := c.Get(ctx, d.Sandbox)
		if err == nil {
			err = sb.Remove(ctx, atoll.RemoveVolumes())
		}
		if err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
			return err // it may still write
		}
	}
	if _, err := os.Stat(d.Dir); d.Work != nil && err == nil {
		repo, err := d.findRepo(ctx)
		if err == nil {
			err = repo.RemoveWork(ctx, d.Work, true)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(d.dir)
}
