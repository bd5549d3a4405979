package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

func newAttach(a *app) *cobra.Command {
	var from, keys string
	var noStdin bool
	cmd := &cobra.Command{
		Use:   "attach [flags] SANDBOX [PROCESS]",
		Short: "Connect to a process that runs in a sandbox",
		Long: `Attach connects your terminal, or your streams, to a process: the main process, or
one that atoll ps lists. It ends with the process and its exit code. The detach
keys end it but leave the process running; without a terminal, so does ^C.

It shows what the process prints from now on, or with --from 0 all output that is
still retained.`,
		Example: `  atoll attach web
  atoll attach --from 0 web 3f2a`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeProcess,
		RunE: func(cmd *cobra.Command, args []string) error {
			offset, err := parseOffset(from)
			if err != nil {
				return err
			}
			detach, err := parseKeys(keys)
			if err != nil {
				return err
			}
			return a.attachProcess(cmd, args[0], processArg(args), offset, detach, !noStdin)
		},
	}
	cmd.Flags().StringVar(&from, "from", "now", "`offset` in the output to begin at, or now")
	cmd.Flags().StringVar(&keys, "detach-keys", defaultDetachKeys, "`keys` that end attach but not the process; \"\" for none")
	cmd.Flags().BoolVar(&noStdin, "no-stdin", false, "do not send input")
	return cmd
}

func processArg(args []string) string {
	if len(args) > 1 {
		return args[1]
	}
	return atoll.MainProcess
}

// processOf returns a process of the sandbox that the user calls ref. op is for the error.
func processOf(ctx context.Context, sb atoll.Sandbox, op, ref, id string) (atoll.Process, error) {
	p, err := sb.Process(ctx, id)
	switch atoll.KindOf(err) {
	case atoll.ErrStopped:
		return nil, atoll.Errorf(op, ref, atoll.ErrStopped, "%w: its processes and their output are gone", causeOf(err))
	case atoll.ErrNotExist:
		if id == atoll.MainProcess {
			return nil, atoll.Errorf(op, ref, atoll.ErrNotExist, "the sandbox has no main process: name one that atoll ps %s lists", ref)
		}
		return nil, atoll.Errorf(op, ref, atoll.ErrNotExist, "%w: atoll ps %s lists the processes", causeOf(err), ref)
	}
	return p, err
}

// causeOf returns err without its operation and its sandbox.
func causeOf(err error) error {
	var e *atoll.Error
	if !errors.As(err, &e) {
		return err
	}
	return cmp.Or(e.Err, error(e.Kind))
}

// parseOffset parses the offset of an attachment.
func parseOffset(s string) (int64, error) {
	if s == "now" {
		return atoll.FromNow, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, usageErrorf("offset %q: write a number of bytes, or now", s)
	}
	return n, nil
}

func (a *app) attachProcess(cmd *cobra.Command, ref, id string, from int64, detach []byte, stdin bool) error {
	// Whether a terminal is needed is only known once the process is.
	ctx, stop := interruptContext(cmd.Context())
	c, sb, err := a.openSandbox(ctx, ref)
	if err != nil {
		stop()
		return preferSignal(ctx, err)
	}
	p, err := processOf(ctx, sb, "attach", ref, id)
	var st atoll.ProcessStatus
	if err == nil {
		st, err = statusOf(ctx, sb, p)
	}
	stop()
	if err != nil {
		return errors.Join(preferSignal(ctx, c.explainError(ctx, err)), c.Close())
	}
	if st.Exit != nil && from == atoll.FromNow {
		a.printMessage("the process has ended; atoll logs shows what it printed")
	}
	s, err := a.newConsole(cmd.Context(), consoleOptions{stdin: stdin && (!st.TTY || isTerminal(a.stdin)), tty: st.TTY, detach: detach, observeOnly: true})
	if err != nil {
		return errors.Join(err, c.Close())
	}
	defer s.closeConsole()
	exit, err := a.followAttached(s, p, startAt(from, st.Stdout), startAt(from, st.Stderr))
	err = errors.Join(c.explainError(s.ctx, err), c.Close())
	s.closeConsole()
	if errors.Is(err, errDetached) {
		a.printMessage("detached")
		return nil
	}
	if err != nil {
		return err
	}
	return asExit(exit)
}

// startAt returns the offset from, or the end of a stream that is shorter: one offset is given for two streams.
func startAt(from int64, st atoll.StreamStatus) int64 {
	if from < 0 {
		return from // from now on
	}
	return min(from, st.Written)
}

// followAttached attaches to p and waits for its end.
func (a *app) followAttached(s *console, p atoll.Process, stdout, stderr int64) (atoll.Exit, error) {
	if err := s.takeTerminal(); err != nil {
		return atoll.Exit{}, err
	}
	if s.size != nil {
		a.redrawScreen(s, p)
	}
	return s.followProcess(p, func(ctx context.Context) error {
		return p.Attach(ctx, &atoll.Attachment{
			Stdin: s.stdin, Stdout: s.stdout, Stderr: s.stderr, StdoutFrom: stdout, StderrFrom: stderr, Gap: s.reportGap,
		})
	})
}

// redrawScreen sets another size and then ours, so that the process redraws its screen even if the size is the same.
func (a *app) redrawScreen(s *console, p atoll.Process) {
	size := *s.size
	size.Rows++
	ctx, cancel := context.WithTimeout(s.ctx, killTimeout)
	defer cancel()
	if atoll.Resize(ctx, p, size) == nil {
		_ = atoll.Resize(ctx, p, *s.size) // continue with a wrong size
	}
}

// openSandbox connects and finds a sandbox.
func (a *app) openSandbox(ctx context.Context, ref string) (*connection, atoll.Sandbox, error) {
	c, err := a.openConnection(ctx)
	if err != nil {
		return nil, nil, err
	}
	sb, err := c.findSandbox(ctx, ref)
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return c, sb, nil
}

// statusOf returns the status of p, or a zero one if p is unknown.
func statusOf(ctx context.Context, sb atoll.Sandbox, p atoll.Process) (atoll.ProcessStatus, error) {
	all, err := atoll.Processes(ctx, sb)
	if err != nil {
		return atoll.ProcessStatus{}, err
	}
	for _, st := range all {
		if st.ID == p.ID() {
			return st, nil
		}
	}
	return atoll.ProcessStatus{}, nil
}

func newLogs(a *app) *cobra.Command {
	var follow bool
	var from, tail string
	cmd := &cobra.Command{
		Use:   "logs [flags] SANDBOX [PROCESS]",
		Short: "Print the output of a process",
		Long: `Logs prints the output of the main process, or of one that atoll ps lists: its
stdout to stdout, its stderr to stderr. The last MiB of each is retained: that of
the main process until the next start of the sandbox, that of others while they
run. The output has no times.`,
		Example:           `  atoll logs --tail 20 -f web`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeProcess,
		RunE: func(cmd *cobra.Command, args []string) error {
			offset, err := parseOffset(from)
			if err != nil {
				return err
			}
			lines, err := parseTail(tail)
			if err != nil {
				return err
			}
			if lines >= 0 && cmd.Flags().Changed("from") {
				return usageErrorf("--tail cannot be combined with --from")
			}
			return a.withSandbox(cmd, args[0], func(ctx context.Context, _ *connection, sb atoll.Sandbox) error {
				p, err := processOf(ctx, sb, "logs", args[0], processArg(args))
				if err != nil {
					return err
				}
				st, err := statusOf(ctx, sb, p)
				if err != nil {
					return err
				}
				gap := func(s atoll.Stream, from, to int64) {
					a.printMessage("%s of %s is no longer retained", byteCount(to-from), s)
				}
				if lines >= 0 {
					return a.printTail(ctx, p, st, lines, follow, gap)
				}
				return p.Attach(ctx, &atoll.Attachment{
					Stdout: io.Writer(a.stdout), Stderr: io.Writer(a.stderr),
					StdoutFrom: startAt(offset, st.Stdout), StderrFrom: startAt(offset, st.Stderr), NoFollow: !follow, Gap: gap,
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "continue until the process ends")
	cmd.Flags().StringVar(&from, "from", "0", "`offset` in the output to begin at, or now")
	cmd.Flags().StringVarP(&tail, "tail", "n", "all", "`number` of lines to print from the end of each stream, or all")
	cmd.SetFlagErrorFunc(logsFlagError)
	return cmd
}
