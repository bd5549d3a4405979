package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

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
		Long: `Exec runs a command in a sandbox that is running. With -t the command may be
left out: it is then the user's shell. Streams, signals and exit codes are those
of atoll run. The command lives on when this program is killed: atoll ps finds
it, and atoll attach connects to it again.`,
		Example: `  atoll exec web -- uname -a
  atoll exec -it web
  tar c . | atoll exec -i -w /work web -- tar x`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.cmd.Args = withoutDashes(args[1:])
			return f.run(a, cmd, args[0])
		},
	}
	f.streamFlags.register(cmd.Flags())
	f.env.register(cmd.Flags())
	cmd.Flags().StringVarP(&f.cmd.Dir, "workdir", "w", "", "`directory` to start in (default the sandbox's)")
	cmd.Flags().StringVarP(&f.cmd.User, "user", "u", "", "`user`: name, UID or UID:GID (default the sandbox's)")
	cmd.Flags().Var((*durationValue)(&f.cmd.Timeout), "timeout", "kill the command after so long, like 5m")
	cmd.Flags().BoolVarP(&f.detach, "detach", "d", false, "print the id of the process and let it run on")
	stopAtCommand(cmd)
	return cmd
}

func (f *execFlags) run(a *app, cmd *cobra.Command, ref string) error {
	var err error
	if f.cmd.Env, err = f.env.list(a.env); err != nil {
		return err
	}
	if f.detach && (f.json || f.stdin) {
		return usagef("-d does not go with -i or --json: nobody is there to attend to them")
	}
	s, err := f.console(cmd.Context(), a)
	if err != nil {
		return err
	}
	defer s.end()
	f.cmd.TTY = s.size
	if len(f.cmd.Args) == 0 && !f.tty {
		return usagef("no command given: name one, or give -t for a shell")
	}
	if err := f.cmd.Validate(); err != nil {
		return err
	}
	c, err := a.connect(s.ctx)
	if err != nil {
		return s.why(err)
	}
	id, exit, err := f.attended(s, c, ref)
	err = errors.Join(err, c.Close())
	s.end()
	switch {
	case errors.Is(err, errDetached):
		a.say("detached: atoll attach %s %s connects again", ref, id)
		return nil
	case err != nil || f.detach:
		return err
	}
	return f.finish(a, s, id, exit)
}

// attended runs the command and attends to it to the end.
func (f *execFlags) attended(s *console, c *connection, ref string) (id string, exit atoll.Exit, err error) {
	sb, err := c.find(s.ctx, ref)
	if err != nil {
		return "", exit, s.why(err)
	}
	if f.detach {
		p, err := sb.Exec(s.ctx, &f.cmd)
		if err != nil {
			return "", exit, s.why(err)
		}
		_, err = fmt.Fprintln(s.app.stdout, p.ID())
		return p.ID(), exit, err
	}
	if err := s.takeTerminal(); err != nil {
		return "", exit, err
	}
	f.cmd.Stdin, f.cmd.Stdout, f.cmd.Stderr = s.stdin, s.stdout, s.stderr
	p, err := sb.Exec(s.ctx, &f.cmd)
	if err != nil {
		return "", exit, s.why(err)
	}
	exit, err = s.follow(p, nil)
	if errors.Is(err, errDetached) {
		return p.ID(), exit, err
	}
	return sb.ID(), exit, err
}
