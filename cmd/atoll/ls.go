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
	var quiet, asJSON, watch bool
	var format formatValue
	var filters []string
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List sandboxes",
		Long: `Ls lists all sandboxes, running or not; -f selects some. The table has a column for
the project, the expiry or the published ports if a sandbox has one.

The fields for --format have the names of atoll.Status in Go, such as .ID, .State, .Image,
.Created or .Spec.Labels, and .Name. The functions json, join, lower and upper help.`,
		Example: `  atoll ls
  atoll ls -q -f state=stopped -f label=job=7 | xargs atoll rm
  atoll ls --format '{{.Name}}\t{{.State}}'`,
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
			switch {
			case watch && (quiet || asJSON || format.template != nil):
				return usageErrorf("--watch cannot be combined with -q, --json or --format")
			case watch && !isTerminal(a.stdout):
				return usageErrorf("--watch needs a terminal: atoll watch prints changes")
			case format.template != nil && (quiet || asJSON):
				return usageErrorf("--format cannot be combined with -q or --json")
			}
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				if watch {
					return a.showLive(ctx, func(ctx context.Context) ([][]string, error) {
						all, err := c.List(ctx, f)
						return sandboxTable(all, time.Now()), err
					})
				}
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
				case format.template != nil:
					for _, st := range all {
						if err := format.printView(a.stdout, inspection{Status: st}); err != nil {
							return err
						}
					}
					return nil
				}
				a.adviseEmpty(len(all), len(filters) > 0 || f.Project != "")
				return a.printTable(sandboxTable(all, time.Now()))
			})
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	cmd.Flags().StringArrayVarP(&filters, "filter", "f", nil, "list only sandboxes that match a `filter`: name=, project=, provider=, state= or label=KEY=value; all must match, but any of several states")
	cmd.Flags().BoolP("all", "a", false, "list all sandboxes, as ls always does")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "refresh the table until interrupted")
	format.addFormatFlag(cmd.Flags(), "")
	return cmd
}

// adviseEmpty says on stderr what to do if a list of n sandboxes is empty. filtered means that others may exist.
func (a *app) adviseEmpty(n int, filtered bool) {
	switch {
	case n > 0:
	case filtered:
		a.printMessage("no sandbox matches; atoll ls without filters and project lists all")
	default:
		a.printMessage("no sandboxes yet: atoll create --name web creates one, atoll run -- COMMAND uses one once")
	}
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
	expiries := slices.ContainsFunc(all, func(st atoll.Status) bool { return !st.Expires.IsZero() })
	ports := slices.ContainsFunc(all, func(st atoll.Status) bool { return len(st.Ports) > 0 })
	row := func(id, name, project, provider, state, image, created, expires, published, command string) []string {
		cells := []string{id, name}
		if projects {
			cells = append(cells, project)
		}
		cells = append(cells, provider, state, image, created)
		if expiries {
			cells = append(cells, expires)
		}
		if ports {
			cells = append(cells, published)
		}
		return append(cells, command)
	}
	rows := [][]string{row("ID", "NAME", "PROJECT", "PROVIDER", "STATE", "IMAGE", "CREATED", "EXPIRES", "PORTS", "COMMAND")}
	for _, st := range all {
		rows = append(rows, row(shortID(st.ID), orDash(st.Spec.Name), st.Spec.Project, st.Provider, shownState(st), orDash(shownImage(st)),
			formatAgo(now.Sub(st.Created)), shownExpiry(st, now), orDash(shownPorts(st.Ports)), orDash(shownCommand(st.Spec.Cmd))))
	}
	return rows
}

func shownExpiry(st atoll.Status, now time.Time) string {
	if st.Expires.IsZero() {
		return "-"
	}
	if left := st.Expires.Sub(now); left >= time.Second {
		return "in " + formatRoughly(left)
	}
	return "now"
}

func shownPorts(ports []atoll.PublishedPort) string {
	var shown []string
	for _, p := range ports {
		shown = append(shown, fmt.Sprintf("%s->%d", p.Address, p.Port))
	}
	return strings.Join(shown, ", ")
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
	if d < time.Second {
		return "now"
	}
	return formatRoughly(d) + " ago"
}

// formatRoughly formats a duration of at least a second in one unit.
func formatRoughly(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

func newInspect(a *app) *cobra.Command {
	var format formatValue
	cmd := &cobra.Command{
		Use:   "inspect [flags] SANDBOX...",
		Short: "Print the full status of sandboxes as a JSON array",
		Long: `Inspect prints the full status of sandboxes as a JSON array. "refusals" lists what
the network of a sandbox refused, and why, if its provider knows. A template for
--format has the fields that atoll ls has, and .Refusals.`,
		Example: `  atoll inspect web
  atoll inspect -f '{{json .Spec.Mounts}}' web`,
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
				if format.template == nil {
					return errors.Join(append(errs, a.printJSON(all))...)
				}
				for _, in := range all {
					errs = append(errs, format.printView(a.stdout, in))
				}
				return errors.Join(errs...)
			})
		},
	}
	format.addFormatFlag(cmd.Flags(), "f")
	return cmd
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
