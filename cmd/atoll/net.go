//go:build !client

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/internal/printable"
)

func newNet(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "net",
		Short: "Show and change what the network of a sandbox allows",
		Long: `A sandbox with --allow, --deny, --policy or --network on has a network with a
policy. Net shows what the network refused and what passed, and changes the policy
while the sandbox runs. A change is in force at once, also for connections that are
open, and for later starts.`,
	}
	cmd.AddCommand(newNetLog(a), newNetShow(a), newNetAllow(a), newNetDeny(a), newNetRm(a), newNetAsk(a))
	return cmd
}

// A logView selects the events of atoll net log.
type logView struct{ follow, refused, names, asJSON bool }

func newNetLog(a *app) *cobra.Command {
	var v logView
	cmd := &cobra.Command{
		Use:   "log [flags] SANDBOX",
		Short: "Print what the network of a sandbox refused, and what passed",
		Long: `Log prints a line for each connection that has ended or was refused, and for each
request of hosts whose requests Atoll looks at: when, whether it was allowed, refused
or failed, the host, the request, the status of the response, the bytes that the
sandbox sent and received, how long it took, and the entry or the reason that decided.
Names that were looked up are without a line unless they were refused; --names adds
them. The log has the latest 1,000 events, also after a stop.`,
		Example: `  atoll net log web
  atoll net log -f --refused web`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSandbox(cmd, args[0], func(ctx context.Context, _ *connection, sb atoll.Sandbox) error { return a.showNetwork(ctx, sb, v) })
		},
	}
	cmd.Flags().BoolVarP(&v.follow, "follow", "f", false, "continue with new events until the sandbox stops")
	cmd.Flags().BoolVar(&v.refused, "refused", false, "only what was refused")
	cmd.Flags().BoolVar(&v.names, "names", false, "also names that were looked up and not refused")
	cmd.Flags().BoolVar(&v.asJSON, "json", false, "print a JSON object on each line")
	return cmd
}

// hasEvent reports whether the view has an event.
func (v *logView) hasEvent(e *atoll.NetworkEvent) bool {
	if e.Verdict == atoll.NetworkRefused {
		return true
	}
	return !v.refused && (v.names || e.Protocol != "dns")
}

// showNetwork prints events of the network, and with follow also later ones, until the sandbox does not run any more.
func (a *app) showNetwork(ctx context.Context, sb atoll.Sandbox, v logView) error {
	log, err := atoll.NetworkLogOf(ctx, sb, 0, 0)
	if err == nil {
		err = a.printNetwork(log.Events, v, true)
	}
	if err != nil {
		return err
	}
	if log.NoNetwork {
		a.printMessage("the sandbox has no network")
		return nil
	}
	if v.follow {
		return followNetwork(ctx, sb, log.Last, func(events []atoll.NetworkEvent) error { return a.printNetwork(events, v, false) })
	}
	if !v.asJSON {
		a.printMessage("%d allowed, %d refused, %s sent, %s received since the sandbox was created", log.Allowed, log.Refused, log.Sent, log.Received)
	}
	return nil
}

// logWait is the time that a request for new events waits for one.
const logWait = 30 * time.Second

// followNetwork calls show for the events after that number, until ctx ends or the sandbox does not run.
func followNetwork(ctx context.Context, sb atoll.Sandbox, after int64, show func([]atoll.NetworkEvent) error) error {
	for {
		log, err := atoll.NetworkLogOf(ctx, sb, after, logWait)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil && len(log.Events) > 0 {
			err = show(log.Events)
		}
		if err != nil {
			return err
		}
		if after = log.Last; len(log.Events) > 0 {
			continue
		}
		st, err := sb.Status(ctx)
		if err != nil || st.State != atoll.StateRunning && st.State != atoll.StatePaused {
			return err
		}
	}
}

func (a *app) printNetwork(events []atoll.NetworkEvent, v logView, head bool) error {
	var rows [][]string
	if head {
		rows = append(rows, []string{"TIME", "VERDICT", "HOST", "REQUEST", "STATUS", "SENT", "RECEIVED", "MS", "WHY"})
	}
	for i := range events {
		e := &events[i]
		if !v.hasEvent(e) {
			continue
		}
		if v.asJSON {
			if err := a.printEvent(e); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, describeEvent(e))
	}
	if v.asJSON || len(rows) == 0 {
		return nil
	}
	return a.printTable(rows)
}

// describeEvent returns a row of the table of atoll net log.
func describeEvent(e *atoll.NetworkEvent) []string {
	request, status, sent, received, took := e.Protocol, "", "", "", ""
	if e.Method != "" {
		request = clipLine(e.Method + " " + e.Path)
	}
	if e.Status != 0 {
		status = strconv.Itoa(e.Status)
	}
	if e.Verdict != atoll.NetworkRefused && e.Protocol != "dns" {
		sent, received = e.Sent.String(), e.Received.String()
		took = strconv.FormatInt(time.Duration(e.Duration).Milliseconds(), 10)
	}
	return []string{
		e.Time.Local().Format(time.DateTime), string(e.Verdict), e.Target(), request, status, sent, received, took, cmp.Or(e.Reason, e.Rule),
	}
}

func newNetShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "show SANDBOX",
		Short:             "Print the policy of the network of a sandbox as JSON",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSandbox(cmd, args[0], func(ctx context.Context, _ *connection, sb atoll.Sandbox) error {
				st, err := sb.Status(ctx)
				if err != nil {
					return err
				}
				return a.writeJSON(struct {
					atoll.Network
					Secrets []atoll.Secret `json:"secrets,omitempty"`
				}{st.Spec.Network, st.Spec.Secrets}, true)
			})
		},
	}
}

func newNetAllow(a *app) *cobra.Command {
	return a.newNetChange("allow", "Allow hosts, networks or requests", "example.com 'GET api.example.com/v1'",
		`Allow adds entries to the list of --allow: see atoll help networks. An entry that
the list of --deny has is removed there.`, allowEntries)
}

// allowEntries adds entries to Allow.
func allowEntries(n *atoll.Network, entries []string) {
	n.Deny = withoutEntries(n.Deny, entries)
	n.Allow = append(withoutEntries(n.Allow, entries), entries...)
}

func newNetDeny(a *app) *cobra.Command {
	return a.newNetChange("deny", "Deny hosts, networks or requests", "evil.example.com",
		`Deny adds entries to the list of --deny, which takes precedence over all others, and
removes them from that of --allow. It ends the connections that they refuse.`,
		func(n *atoll.Network, entries []string) {
			n.Allow = withoutEntries(n.Allow, entries)
			n.Deny = append(withoutEntries(n.Deny, entries), entries...)
		})
}

func newNetRm(a *app) *cobra.Command {
	return a.newNetChange("rm", "Remove entries that allow or deny", "example.com",
		`Rm removes entries from the lists of --allow and --deny, as atoll net show prints
them. It ends the connections that nothing allows any more.`,
		func(n *atoll.Network, entries []string) {
			n.Allow, n.Deny = withoutEntries(n.Allow, entries), withoutEntries(n.Deny, entries)
		})
}

// newNetChange returns a command that changes the policy of a sandbox.
func (a *app) newNetChange(name, short, example, long string, change func(n *atoll.Network, entries []string)) *cobra.Command {
	return &cobra.Command{
		Use:               name + " SANDBOX ENTRY...",
		Short:             short,
		Long:              long,
		Example:           "  atoll net " + name + " web " + example,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSandbox(cmd, args[0], func(ctx context.Context, _ *connection, sb atoll.Sandbox) error {
				changed, err := changeNetwork(ctx, sb, func(n *atoll.Network) { change(n, args[1:]) })
				if err == nil && !changed {
					a.printMessage("the policy is as it was")
				}
				return err
			})
		},
	}
}

// maxNetChanges is the number of times that a change is tried while others change the policy, too.
const maxNetChanges = 10

// changeNetwork changes the policy of a sandbox, and reports whether it was different before.
func changeNetwork(ctx context.Context, sb atoll.Sandbox, change func(*atoll.Network)) (changed bool, err error) {
	for range maxNetChanges {
		st, err := sb.Status(ctx)
		if err != nil {
			return false, err
		}
		after := st.Spec.Clone().Network
		if change(&after); after.Equal(&st.Spec.Network) {
			return false, nil
		}
		err = atoll.UpdateNetwork(ctx, sb, atoll.NetworkChange{Network: after, Previous: &st.Spec.Network})
		if !errors.Is(err, atoll.ErrConflict) {
			return err == nil, err
		}
	}
	return false, atoll.Errorf("network", sb.ID(), atoll.ErrConflict, "others change the policy all the time: try again")
}

func newNetAsk(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "ask SANDBOX",
		Short: "Ask about each host that the network of a sandbox refuses",
		Long: `Ask names what the network of the sandbox has refused and could allow, and then
what it refuses while you watch, each once. Answer with one letter: o allows it until
this command ends, s for this sandbox, p for all sandboxes of its project with a list
of allowed hosts (the setting project_allow), n not. q ends the command.`,
		Example:           "  atoll net ask web",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSandbox(cmd, args[0], func(ctx context.Context, _ *connection, sb atoll.Sandbox) error { return a.askNetwork(ctx, sb) })
		},
	}
}

// A netQuestion asks about what the network of a sandbox refuses.
type netQuestion struct {
	*app
	sandbox atoll.Sandbox
	project string
	lines   <-chan string   // of the answers; closed at their end
	asked   map[string]bool // entries that were asked about
	once    []string        // entries to remove at the end
}

// errAnswered ends the questions.
var errAnswered = errors.New("no more questions")

// askNetwork asks until the user has enough, the sandbox stops or ctx ends.
func (a *app) askNetwork(ctx context.Context, sb atoll.Sandbox) (err error) {
	st, err := sb.Status(ctx)
	if err != nil {
		return err
	}
	log, err := atoll.NetworkLogOf(ctx, sb, 0, 0)
	if err != nil {
		return err
	}
	if log.NoNetwork {
		return usageErrorf("sandbox %s has no network: create another with --allow", cmp.Or(st.Spec.Name, st.ID))
	}
	q := &netQuestion{app: a, sandbox: sb, project: st.Spec.Project, lines: readLines(a.stdin), asked: map[string]bool{}}
	defer func() { err = errors.Join(err, q.removeOnce(ctx)) }()
	err = q.askEvents(ctx, log.Events)
	if err == nil {
		err = q.watchEvents(ctx, log.Last)
	}
	if errors.Is(err, errAnswered) || ctx.Err() != nil {
		return nil
	}
	return err
}

// watchEvents asks about the events after that number, until the user has enough, the sandbox stops or ctx ends.
func (q *netQuestion) watchEvents(ctx context.Context, after int64) error {
	q.printMessage("watching what the network refuses: q and Enter, or Ctrl-C, end it")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	batches, ended := make(chan []atoll.NetworkEvent), make(chan error, 1)
	go func() {
		ended <- followNetwork(ctx, q.sandbox, after, func(events []atoll.NetworkEvent) error {
			select {
			case batches <- events:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	for {
		select {
		case events := <-batches:
			if err := q.askEvents(ctx, events); err != nil {
				return err
			}
		case line, ok := <-q.lines:
			if !ok || line == "q" {
				return errAnswered
			}
		case err := <-ended:
			return err
		}
	}
}

// readLines returns the lines of r in lower case. A read of a terminal cannot be interrupted: it ends with the program.
func readLines(r io.Reader) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			lines <- strings.ToLower(strings.TrimSpace(s.Text()))
		}
	}()
	return lines
}

// askEvents asks about each entry that would open what was refused.
func (q *netQuestion) askEvents(ctx context.Context, events []atoll.NetworkEvent) error {
	for i := range events {
		e := &events[i]
		if e.Verdict != atoll.NetworkRefused || e.Opens == "" || q.asked[e.Opens] {
			continue
		}
		q.asked[e.Opens] = true
		if err := q.askEvent(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// askEvent asks about one event, until the answer is one.
func (q *netQuestion) askEvent(ctx context.Context, e *atoll.NetworkEvent) error {
	for {
		text := fmt.Sprintf("%s was refused (%s). Allow %s: [o]nce, this [s]andbox, the [p]roject, [n]o, [q]uit? ", e.Target(), e.Reason, e.Opens)
		if _, err := q.stderr.WriteString(printable.Escape(text, "")); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case line, ok := <-q.lines:
			if !ok || line == "q" {
				return errAnswered
			}
			if done, err := q.takeAnswer(ctx, line, e.Opens); done || err != nil {
				return err
			}
		}
	}
}

// takeAnswer does what the user wants, and reports whether the answer is one.
func (q *netQuestion) takeAnswer(ctx context.Context, answer, entry string) (done bool, err error) {
	switch answer {
	case "n":
		return true, nil
	case "o", "s", "p":
		changed, err := changeNetwork(ctx, q.sandbox, func(n *atoll.Network) { allowEntries(n, []string{entry}) })
		if changed && answer == "o" {
			q.once = append(q.once, entry)
		}
		if answer == "p" && err == nil {
			err = q.allowProject(entry)
		}
		return true, err
	}
	return false, nil
}

// allowProject adds an entry to the setting project_allow.
func (q *netQuestion) allowProject(entry string) error {
	cfg, err := q.loadConfig()
	if err != nil {
		return err
	}
	values := append(slices.Clone(cfg.ProjectAllow), q.project+"="+entry)
	return config.Edit(q.fileSource(), config.Change{Key: "project_allow", Values: values})
}

// removeOnce removes the entries that were to be allowed until the end.
func (q *netQuestion) removeOnce(ctx context.Context) error {
	if len(q.once) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	_, err := changeNetwork(ctx, q.sandbox, func(n *atoll.Network) { n.Allow = withoutEntries(n.Allow, q.once) })
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	return err
}
