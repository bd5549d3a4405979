package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

// sampleInterval is the time over which atoll stats --no-stream measures CPUs.
const sampleInterval = 500 * time.Millisecond

func newStats(a *app) *cobra.Command {
	var noStream, asJSON bool
	cmd := &cobra.Command{
		Use:     "stats [flags] [SANDBOX...]",
		Aliases: []string{"top"},
		Short:   "Show the CPU time, memory and processes of sandboxes",
		Long: `Stats shows what running sandboxes use, or the named ones: CPU is the use of CPUs
since the last line, in percent of one, and CPU TIME since the start. On a terminal
it refreshes the table until it is interrupted; without one it prints the table once.
If a provider cannot measure its sandboxes, they have dashes. Nor is the space of
files measured.`,
		Example: `  atoll stats
  atoll stats --no-stream web`,
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			project, err := a.namedProject()
			if err != nil {
				return err
			}
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				m := meter{connection: c, refs: args, filter: project}
				if !asJSON && !noStream && isTerminal(a.stdout) {
					return a.showLive(ctx, func(ctx context.Context) ([][]string, error) {
						samples, err := m.takeSamples(ctx)
						return m.buildTable(samples), err
					})
				}
				samples, err := m.takeSamples(ctx)
				switch {
				case err != nil:
					return err
				case asJSON:
					return errors.Join(a.printJSON(orEmpty(samples)), errorsOf(samples))
				}
				m.buildTable(samples)
				if samples, err = m.sampleAgain(ctx); err != nil {
					return err
				}
				return errors.Join(a.printTable(m.buildTable(samples)), errorsOf(samples))
			})
		},
	}
	cmd.Flags().BoolVar(&noStream, "no-stream", false, "print the table once")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array once")
	return cmd
}

// A measurement is the usage of a sandbox at one moment.
type measurement struct {
	ID      string       `json:"id"`
	Name    string       `json:"name,omitempty"`
	Project string       `json:"project"`
	State   atoll.State  `json:"state"`
	Usage   *atoll.Usage `json:"usage,omitempty"` // nil if it is unknown

	limits atoll.Resources
	taken  time.Time
	err    error // why the usage of a named sandbox is unknown
}

// errorsOf returns why the usage of named sandboxes is unknown.
func errorsOf(samples []measurement) error {
	var errs []error
	for _, s := range samples {
		errs = append(errs, s.err)
	}
	return errors.Join(errs...)
}

// A meter measures sandboxes again and again.
type meter struct {
	*connection
	refs   []string // the named sandboxes; none for all that run
	filter string   // project of all that run; "" for all projects
	before map[string]measurement
}

// sampleAgain takes samples after an interval.
func (m *meter) sampleAgain(ctx context.Context) ([]measurement, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(sampleInterval):
		return m.takeSamples(ctx)
	}
}

// takeSamples measures all sandboxes at once.
func (m *meter) takeSamples(ctx context.Context) ([]measurement, error) {
	list, err := m.listMeasured(ctx)
	if err != nil {
		return nil, err
	}
	samples := make([]measurement, len(list))
	slots := make(chan struct{}, maxConcurrent)
	var all sync.WaitGroup
	for i, st := range list {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			samples[i] = m.measureSandbox(ctx, st)
		})
	}
	all.Wait()
	return samples, ctx.Err()
}

// listMeasured returns the named sandboxes, or all that run.
func (m *meter) listMeasured(ctx context.Context) (list []atoll.Status, err error) {
	if len(m.refs) == 0 {
		return m.List(ctx, atoll.Filter{Project: m.filter, States: []atoll.State{atoll.StateRunning, atoll.StatePaused}})
	}
	for _, ref := range m.refs {
		sb, err := m.findSandbox(ctx, ref)
		if err != nil {
			return nil, err
		}
		st, err := sb.Status(ctx)
		if err != nil {
			return nil, err
		}
		list = append(list, st)
	}
	return list, nil
}

func (m *meter) measureSandbox(ctx context.Context, st atoll.Status) measurement {
	s := measurement{ID: st.ID, Name: st.Spec.Name, Project: st.Spec.Project, State: st.State, limits: st.Spec.Resources}
	sb, err := m.Get(ctx, st.ID)
	if err == nil {
		var usage atoll.Usage
		if usage, err = atoll.UsageOf(ctx, sb); err == nil {
			s.Usage, s.taken = &usage, time.Now()
		}
	}
	if err != nil && len(m.refs) > 0 {
		s.err = atoll.Errorf("stats", shownName(st), atoll.KindOf(err), "%w", causeOf(err))
	}
	return s
}

// buildTable returns the table of samples, with the use of CPUs since the last call.
func (m *meter) buildTable(samples []measurement) [][]string {
	rows := [][]string{{"ID", "NAME", "STATE", "CPU", "CPU TIME", "MEMORY", "PIDS"}}
	now := map[string]measurement{}
	for _, s := range samples {
		now[s.ID] = s
		cpu, total, memory, processes := "-", "-", "-", "-"
		if s.Usage != nil {
			if last := m.before[s.ID]; last.Usage != nil && s.Usage.CPU >= last.Usage.CPU && s.taken.After(last.taken) {
				cpu = fmt.Sprintf("%.1f%%", 100*float64(s.Usage.CPU-last.Usage.CPU)/float64(s.taken.Sub(last.taken)))
			}
			total = time.Duration(s.Usage.CPU).Round(10 * time.Millisecond).String()
			memory = byteCount(int64(s.Usage.Memory))
			if s.limits.Memory > 0 {
				memory += " / " + byteCount(int64(s.limits.Memory))
			}
			processes = fmt.Sprint(s.Usage.Processes)
			if s.limits.Processes > 0 {
				processes += fmt.Sprintf(" / %d", s.limits.Processes)
			}
		}
		rows = append(rows, []string{shortID(s.ID), orDash(s.Name), string(s.State), cpu, total, memory, processes})
	}
	m.before = now
	return rows
}
