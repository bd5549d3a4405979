package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// newVerb returns a command that does one thing to each named sandbox.
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
	cmd := a.newVerb("stop [flags]", "Stop sandboxes and retain their files",
		func(ctx context.Context, sb atoll.Sandbox) error { return sb.Stop(ctx, time.Duration(grace)) })
	cmd.Flags().VarP((*durationValue)(&grace), "time", "t", "time that processes have to end before they are killed")
	return cmd
}

func newPause(a *app) *cobra.Command {
	return a.newVerb("pause", "Freeze all processes of sandboxes",
		func(ctx context.Context, sb atoll.Sandbox) error { return atoll.Pause(ctx, sb) })
}

func newResume(a *app) *cobra.Command {
	return a.newVerb("resume", "Resume the processes of paused sandboxes",
		func(ctx context.Context, sb atoll.Sandbox) error { return atoll.Resume(ctx, sb) })
}

func newExtend(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "extend SANDBOX DURATION",
		Short: "Change the expiry of a sandbox",
		Long: `Extend sets the expiry of a sandbox that was created with --ttl to so long from
now; never means that it does not expire.`,
		Example: `  atoll extend web 2h
  atoll extend web never`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			var ttl atoll.Duration
			if err := ttl.UnmarshalText([]byte(args[1])); err != nil {
				return usageErrorf("%v", err)
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
		Long: `Rm ends and removes sandboxes. It retains the data volume, which holds the work
directory, of a sandbox with a name, a chosen id or a workspace, and of those of
sessions and conversations. With -v it removes data volumes, too, and with
--volumes=false none. Named volumes are always retained.`,
		Example: `  atoll rm web
  atoll rm --all --volumes`,
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case all && len(args) > 0:
				return usageErrorf("name the sandboxes to remove or use --all, not both")
			case !all && len(args) == 0:
				return usageErrorf("name the sandboxes to remove, or use --all; atoll ls lists sandboxes")
			}
			data := dataOfUnnamed
			if cmd.Flags().Changed("volumes") {
				data = map[bool]dataVolumes{false: noData, true: allData}[volumes]
			}
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				if all {
					return a.removeAll(ctx, c, data)
				}
				defer func() { a.noteVolumes(ctx, c, volumes) }()
				return a.forEach(args, func(ref string) error {
					sb, err := c.findSandbox(ctx, ref)
					if force && errors.Is(err, atoll.ErrNotFound) {
						return errNothing
					}
					if err != nil {
						return err
					}
					var st atoll.Status
					if data == dataOfUnnamed {
						st, _ = sb.Status(ctx) // a sandbox of which nothing is known keeps its data volume
					}
					return sb.Remove(ctx, data.removeOptions(&st)...)
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "remove every sandbox, or with --project all of that project")
	cmd.Flags().BoolVarP(&volumes, "volumes", "v", false, "remove their data volumes as well")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "ignore missing sandboxes")
	return cmd
}

// dataVolumes selects the sandboxes that are removed with their data volumes.
type dataVolumes int

const (
	noData        dataVolumes = iota
	dataOfUnnamed             // of sandboxes that nobody can ask for again
	allData
)

// removeOptions returns the options to remove a sandbox with.
func (d dataVolumes) removeOptions(st *atoll.Status) []atoll.RemoveOption {
	if d == allData || d == dataOfUnnamed && isUnnamed(st) {
		return []atoll.RemoveOption{atoll.RemoveVolumes()}
	}
	return nil
}

// isUnnamed reports whether a sandbox has neither a name nor an id that somebody chose, and no session, conversation or
// workspace needs its data volume.
func isUnnamed(st *atoll.Status) bool {
	generated := atoll.IsNewID(st.ID) || pool.IsPoolID(st.ID)
	return st.Spec.Name == "" && generated && st.Spec.Workspace == (atoll.WorkspaceRef{}) && !hasOwner(st.Spec.Labels)
}

// hasOwner reports whether a session or a conversation owns a sandbox with these labels.
func hasOwner(labels map[string]string) bool {
	for _, label := range []string{session.LabelSession, agent.LabelAccount, agent.LabelTemplate} {
		if labels[label] != "" {
			return true
		}
	}
	return false
}

func (a *app) removeAll(ctx context.Context, c *connection, data dataVolumes) error {
	project, err := a.namedProject()
	if err != nil {
		return err
	}
	all, err := c.List(ctx, atoll.Filter{Project: project})
	if err != nil {
		return err
	}
	names, statuses := nameSandboxes(c, all)
	defer func() { a.noteVolumes(ctx, c, data == allData) }()
	return a.forEach(names, func(name string) error {
		st := statuses[name]
		sb, err := c.Get(ctx, st.ID)
		if errors.Is(err, atoll.ErrNotFound) {
			return nil // another program was faster
		}
		if err != nil {
			return err
		}
		return sb.Remove(ctx, data.removeOptions(&st)...)
	})
}

// nameSandboxes returns what to call each sandbox of a list, its name or else its id, and the sandboxes by that. A name
// that sandboxes of several projects have is none.
func nameSandboxes(c *connection, all []atoll.Status) (names []string, statuses map[string]atoll.Status) {
	count := map[string]int{}
	for _, st := range all {
		count[st.Spec.Name]++
	}
	statuses = map[string]atoll.Status{}
	for _, st := range all {
		name := st.Spec.Name
		if name == "" || count[name] > 1 {
			name = st.ID
		}
		names, statuses[name] = append(names, name), st
		c.named.addReference(st.ID, name)
	}
	return names, statuses
}

// noteVolumes says on stderr which data volumes remain of removed sandboxes. It says nothing if they were removed, too,
// or the provider has no volumes.
func (a *app) noteVolumes(ctx context.Context, c *connection, removed bool) {
	if removed || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout) // another provider may not answer
	defer cancel()
	all, err := atoll.Volumes(ctx, c.Provider, "")
	if err != nil {
		return // the sandboxes are removed nevertheless
	}
	var left []atoll.Volume
	for _, v := range all {
		if _, _, ok := c.named.findReference(v.Sandbox, false); ok && v.Sandbox != "" && !v.InUse {
			left = append(left, v)
		}
	}
	project := ""
	if len(left) > 0 && left[0].Project != atoll.DefaultProject {
		project = " --project " + left[0].Project
	}
	switch len(left) {
	case 0:
	case 1:
		a.printMessage("the data volume %s remains: atoll volume rm%s %s removes it", left[0].Name, project, left[0].Name)
	default:
		a.printMessage("%d data volumes remain: atoll volume ls lists them, atoll volume rm removes them", len(left))
	}
}
