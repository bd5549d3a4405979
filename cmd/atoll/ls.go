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

func newLs(a *app) *cobra.Command {
	var quiet, asJSON bool
	var filters []string
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List sandboxes",
		Example: `  atoll ls
  atoll ls -q -f state=stopped -f label=job=7 | xargs atoll rm`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := parseFilter(filters)
			if err != nil {
				return err
			}
			p, err := a.namedProject()
			if err != nil {
				return err
			}
			f.Project = cmp.Or(p, f.Project)
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				all, err := c.List(ctx, f)
				if err == nil {
					err = a.sayMissing(ctx, c)
				}
				switch {
				case err != nil:
					return err
				case asJSON:
					return a.printJSON(orEmpty(all))
				case quiet:
					return a.printIDs(all)
				}
				return a.printTable(sandboxTable(all, time.Now()))
			})
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	cmd.Flags().StringArrayVarP(&filters, "filter", "f", nil, "list only sandboxes that match a `filter`: name=, project=, provider=, state= or label=KEY=value; all must match, but any of several states")
	return cmd
}

// sayMissing warns of providers of the server whose sandboxes are not listed. A server in this process warns itself.
func (a *app) sayMissing(ctx context.Context, c *connection) error {
	if c.close != nil {
		return nil
	}
	all, err := atoll.Members(ctx, c.Provider)
	for _, m := range all {
		if m.InUse && m.Problem != "" {
			a.printMessage("warning: the provider %s does not answer: %s", m.Name, m.Problem)
		}
	}
	return err
}

func parseFilter(filters []string) (atoll.Filter, error) {
	var f atoll.Filter
	for _, s := range filters {
		k, v, ok := strings.Cut(s, "=")
		switch {
		case !ok:
			return f, usageErrorf("filter %q: write it like name=web, project=p, provider=docker, state=running or label=KEY=value", s)
		case k == "name":
			f.Name = v
		case k == "project":
			f.Project = v
		case k == "provider":
			f.Provider = v
		case k == "state" && slices.Contains(states, atoll.State(v)):
			f.States = append(f.States, atoll.State(v))
		case k == "state":
			return f, usageErrorf("filter %q: use one of %s", s, joinStates())
		case k == "label":
			if f.Labels == nil {
				f.Labels = map[string]string{}
			}
			lk, lv, _ := strings.Cut(v, "=")
			f.Labels[lk] = lv
		default:
			return f, usageErrorf("filter %q: use name, project, provider, state or label", s)
		}
	}
	return f, nil
}

// states are the states of sandboxes in lists.
var states = []atoll.State{
	atoll.StateCreating, atoll.StateCreated, atoll.StateRunning, atoll.StatePaused, atoll.StateStopped, atoll.StateFailed,
}

func joinStates() string {
	var names []string
	for _, s := range states {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

func (a *app) printIDs(all []atoll.Status) error {
	for _, st := range all {
		if _, err := fmt.Fprintln(a.stdout, st.ID); err != nil {
			return err
		}
	}
	return nil
}

func sandboxTable(all []atoll.Status, now time.Time) [][]string {
	projects := slices.ContainsFunc(all, func(st atoll.Status) bool { return st.Spec.Project != atoll.DefaultProject })
	row := func(project string, cells ...string) []string {
		if !projects {
			return cells
		}
		return slices.Insert(cells, 2, project)
	}
	rows := [][]string{row("PROJECT", "ID", "NAME", "PROVIDER", "STATE", "IMAGE", "CREATED", "COMMAND")}
	for _, st := range all {
		rows = append(rows, row(st.Spec.Project, shortID(st.ID), orDash(st.Spec.Name), st.Provider, shownState(st), orDash(shownImage(st)),
			formatAgo(now.Sub(st.Created)), orDash(shownCommand(st.Spec.Cmd))))
	}
	return rows
}

func shownState(st atoll.Status) string {
	if st.State == atoll.StateFailed && st.Reason != "" {
		return "failed (" + st.Reason + ")"
	}
	if st.State == atoll.StateStopped && st.Exit != nil {
		return fmt.Sprintf("stopped (%d)", st.Exit.Code)
	}
	return string(st.State)
}

func shownImage(st atoll.Status) string {
	if st.Spec.Image != "" {
		return st.Spec.Image
	}
	name, _, _ := strings.Cut(st.Image, "@") // atoll inspect has the digest
	return name
}

func shownCommand(args []string) string {
	const most = 40
	s := strings.Join(strings.Fields(strings.Join(args, " ")), " ")
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// formatAgo formats a past duration roughly.
func formatAgo(d time.Duration) string {
	switch {
	case d < time.Second:
		return "now"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds ago", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm ago", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", d/time.Hour)
	}
	return fmt.Sprintf("%dd ago", d/(24*time.Hour))
}

func newInspect(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect SANDBOX...",
		Short: "Print the full status of sandboxes as a JSON array",
		Long: `Inspect prints the full status of sandboxes as a JSON array. "refusals" lists what
the network of a sandbox refused, and why, if its provider knows.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				all, errs := []inspection{}, []error(nil)
				for _, ref := range args {
					in, err := c.inspectSandbox(ctx, ref)
					if err != nil {
						errs = append(errs, err)
					}
					if in.ID != "" {
						all = append(all, in)
					}
				}
				return errors.Join(append(errs, a.printJSON(all))...)
			})
		},
	}
}

// An inspection is the full status of a sandbox.
type inspection struct {
	atoll.Status
	Refusals *atoll.Refusals `json:"refusals,omitempty"` // nil if the provider does not know them
}

// inspectSandbox returns the full status of a sandbox. Its ID is "" if the sandbox was not found.
func (c *connection) inspectSandbox(ctx context.Context, ref string) (in inspection, err error) {
	sb, err := c.findSandbox(ctx, ref)
	if err != nil {
		return in, err
	}
	if in.Status, err = sb.Status(ctx); err != nil || !in.Caps.Refusals {
		return in, err
	}
	refusals, err := atoll.RefusalsOf(ctx, sb)
	if err == nil {
		in.Refusals = &refusals
	}
	if atoll.KindOf(err) == atoll.ErrUnsupported { // its supervisor is of an earlier version
		err = nil
	}
	return in, err
}
