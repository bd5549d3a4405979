package main

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed46cd37a8/atoll"
)

type execFlags struct {
	streamFlags
	env    envFlags
	cmd    atoll.Command
	detach bool
}

func newExec(a *app) *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] SANDBOX [--] [COMMAND [ARG...]]",
		Short: "Run a command in a running sandbox",
		Long: `Exec runs a command in a running sandbox. On a terminal, or with -t, the command may
be omitted: it is then the user's shell, on a terminal as with -it. It treats streams,
signals and exit codes as atoll run does. If this program is killed, the command
continues: atoll ps lists it, and atoll attach connects to it again.`,
		Example: `  atoll exec web -- uname -a
  atoll exec web
  tar c . | atoll exec -i -w /work web -- tar x`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.cmd.Args = withoutDashes(args[1:])
			return f.runCommand(a, cmd, args[0])
		},
	}
	f.streamFlags.addFlags(cmd.Flags())
	f.env.addFlags(cmd.Flags())
	f.addPlaceFlags(cmd.Flags())
	cmd.Flags().Var((*durationValue)(&f.cmd.Timeout), "timeout", "kill the command after so long, like 5m")
	cmd.Flags().BoolVar(&f.cmd.Durable, "durable", false, "continue the command in sandboxes that start from a snapshot, under the same id")
	cmd.Flags().BoolVarP(&f.detach, "detach", "d", false, "print the id of the process and leave it running")
	stopAtCommand(cmd)
	return cmd
}

// addPlaceFlags adds the flags of the directory and the user of the command.
func (f *execFlags) addPlaceFlags(fs *pflag.FlagSet) {
	fs.StringVarP(&f.cmd.Dir, "workdir", "w", "", "`directory` to start in (default the sandbox's)")
	fs.StringVarP(&f.cmd.User, "user", "u", "", "`user`: name, UID or UID:GID (default the sandbox's)")
}

func (f *execFlags) runCommand(a *app, cmd *cobra.Command, ref string) error {
	var err error
	if f.cmd.Env, err = f.env.listVars(a.env); err != nil {
		return err
	}
	if f.detach && (f.json || f.stdin) {
		return usageErrorf("-d cannot be combined with -i or --json")
	}
	if len(f.cmd.Args) == 0 {
		if err := f.defaultToShell(a, f.detach); err != nil {
			return err
		}
	}
	s, err := f.newConsole(cmd.Context(), a)
	if err != nil {
		return err
	}
	defer s.closeConsole()
	f.cmd.TTY = s.size
	if err := f.cmd.Validate(); err != nil {
		return err
	}
	c, err := a.openConnection(s.ctx)
	if err != nil {
		return s.breakCause(err)
	}
	id, exit, err := f.runAttended(s, c, ref)
	err = errors.Join(c.explainError(s.ctx, err), c.Close())
	s.closeConsole()
	switch {
	case errors.Is(err, errDetached):
		a.printMessage("detached: run atoll attach %s %s to reconnect", ref, id)
		return nil
	case err != nil || f.detach:
		return err
	}
	return f.finishCommand(a, s, id, exit)
}

// runAttended runs the command and waits for its end, unless it is detached.
func (f *execFlags) runAttended(s *console, c *connection, ref string) (id string, exit atoll.Exit, err error) {
	sb, st, err := c.findStatus(s.ctx, ref)
	if err != nil {
		return "", exit, s.breakCause(err)
	}
	if f.detach {
		p, err := sb.Exec(s.ctx, &f.cmd)
		if err != nil {
			return "", exit, s.breakCause(err)
		}
		_, err = fmt.Fprintln(s.app.stdout, p.ID())
		return p.ID(), exit, err
	}
	if err := s.takeTerminal(); err != nil {
		return "", exit, err
	}
	f.cmd.Stdin, f.cmd.Stdout, f.cmd.Stderr = s.stdin, s.stdout, s.stderr
	locateWorkspace(s.ctx, c, &st.Spec)
	shared := readHostFiles(&st.Spec)
	began := time.Now()
	p, err := sb.Exec(s.ctx, &f.cmd)
	if err != nil {
		return "", exit, s.breakCause(err)
	}
	exit, err = s.followProcess(p, nil)
	s.app.warnHostFiles(&st.Spec, shared)
	if errors.Is(err, errDetached) {
		return p.ID(), exit, err
	}
	if err == nil {
		s.reportRefusals(sb, cmp.Or(st.Spec.Name, st.ID), began, exit)
	}
	return sb.ID(), exit, err
}
