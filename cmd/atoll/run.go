package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
)

type runFlags struct {
	specFlags
	streamFlags
	detach  bool
	keep    bool
	rm      bool
	timeout atoll.Duration

	kept    bool   // as keep wants it
	process string // the id of the command's, if it is not the main one
}

func newRun(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG...]",
		Short: "Run a command in a new sandbox, which is removed when the command ends",
		Long: `Run makes a sandbox, runs the command in it, and removes the sandbox with all
its files when the command ends. A server may have one that is ready: see atoll pool.

The command's output is passed on as it is; what Atoll itself has to say goes to
stderr. Without -i the command reads an empty stdin. Signals are passed on to
the command; whoever presses ^C three times within a short time has it killed,
unless the command has a terminal (-t): there ^C is its own matter.

The exit code is the command's. Besides that it is 124 when --timeout was
reached, 125 when Atoll failed, 126 when the command could not be started and
127 when it was not found.`,
		Example: `  atoll run -- sh -c 'echo $((6*7)); exit 3'
  echo hi | atoll run -i -- cat
  atoll run -it -- bash
  atoll run -v .:/work --network on --timeout 5m -- make test`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(a, cmd, args) },
	}
	f.specFlags.register(cmd.Flags())
	f.streamFlags.register(cmd.Flags())
	cmd.Flags().BoolVarP(&f.detach, "detach", "d", false, "print the id of the sandbox and let the command run on")
	cmd.Flags().BoolVar(&f.keep, "keep", false, "keep the sandbox, stopped, when the command ends")
	cmd.Flags().BoolVar(&f.rm, "rm", true, "remove the sandbox when the command ends; --rm=false is --keep")
	cmd.Flags().Var((*durationValue)(&f.timeout), "timeout", "kill the command after so long, like 5m")
	stopAtCommand(cmd)
	return cmd
}

func (f *runFlags) run(a *app, cmd *cobra.Command, args []string) error {
	spec, err := f.build(a, args)
	if err != nil {
		return err
	}
	f.keep = f.keep || !f.rm
	spec.AutoRemove, spec.OpenStdin = !f.keep, f.stdin && !f.keep
	if f.timeout < 0 {
		return usagef("timeout %s: must not be negative", f.timeout)
	}
	if f.detach {
		return f.runDetached(a, cmd, spec)
	}
	s, err := f.console(cmd.Context(), a)
	if err != nil {
		return err
	}
	defer s.end()
	c, err := a.connect(s.ctx)
	if err != nil {
		return s.why(err)
	}
	if !c.lives {
		s.detach = nil // there would be nobody to leave the command to
	}
	exit, id, err := f.attended(s, c, spec)
	err = errors.Join(err, c.Close())
	s.end()
	if errors.Is(err, errDetached) {
		a.say("detached: atoll attach %s connects again", strings.TrimSpace(shortID(id)+" "+f.process))
		return nil
	}
	if f.kept {
		a.say("kept, stopped, as %s", id)
	}
	if errors.Is(err, atoll.ErrCommandNotFound) && spec.Image == "" && cmd.ArgsLenAtDash() < 0 {
		return errors.Join(err, fmt.Errorf("was it meant to be an image? Then write: atoll run --image %s -- COMMAND", args[0]))
	}
	if err != nil {
		return err
	}
	return f.finish(a, s, id, exit)
}

// runDetached leaves the command to itself.
func (f *runFlags) runDetached(a *app, cmd *cobra.Command, spec *atoll.Spec) error {
	if f.stdin || f.json || f.timeout != 0 {
		return usagef("-d does not go with -i, --json or --timeout: nobody is there to attend to them")
	}
	if f.tty {
		size := a.terminalSize()
		spec.TTY = &size
	}
	return a.create(cmd, spec, f.quiet)
}

// attended makes the sandbox, attends to its command to the end, and removes
// it, or with --keep stops it, whatever happens.
func (f *runFlags) attended(s *console, c *connection, spec *atoll.Spec) (exit atoll.Exit, id string, err error) {
	if err := s.app.prepare(s.ctx, c, spec, f.quiet); err != nil {
		return exit, "", s.why(err)
	}
	args := spec.Cmd
	idle, err := f.idle(s.ctx, c, spec)
	if err != nil {
		return exit, "", s.why(err)
	}
	if idle != nil {
		spec = idle
	} else {
		spec.TTY = s.size
		if f.timeout > 0 && spec.TTL == 0 {
			spec.TTL = f.timeout + atoll.Duration(time.Minute) // should this process be killed before
		}
	}
	sb, err := c.Create(s.ctx, spec)
	if err != nil {
		return exit, "", s.why(err)
	}
	defer func() {
		if errors.Is(err, errDetached) {
			return
		}
		left := f.leave(s, sb)
		f.kept = f.keep && left == nil
		gone := atoll.KindOf(err) == atoll.ErrUnavailable && atoll.KindOf(left) == atoll.ErrUnavailable
		if left != nil && !gone { // else err says that the server has gone
			s.app.say("%v", left)
		}
	}()
	if err := s.takeTerminal(); err != nil {
		return exit, sb.ID(), err
	}
	if idle != nil {
		exit, err = f.other(s, sb, args)
	} else {
		exit, err = f.main(s, sb)
	}
	return exit, sb.ID(), err
}

// idle is what the sandbox is made from if the command is not to be its main process:
// with --keep, as that cannot be read any longer once its end has stopped the sandbox,
// or because there is one that is ready. nil means that it is to be.
func (f *runFlags) idle(ctx context.Context, c *connection, spec *atoll.Spec) (*atoll.Spec, error) {
	idle := spec.Clone()
	idle.Cmd, idle.AutoRemove, idle.OpenStdin = nil, false, false
	if f.keep {
		return idle, nil
	}
	if idle.IdleStop == 0 { // should this process be killed before it has removed it
		idle.IdleStop, idle.IdleRemove = config.RunIdle, true
	}
	id, err := atoll.Reserve(ctx, c.Provider, idle)
	if id == "" {
		return nil, err
	}
	idle.ID = id
	return idle, nil
}

// main attends to the sandbox's main process.
func (f *runFlags) main(s *console, sb atoll.Sandbox) (atoll.Exit, error) {
	p, err := sb.Process(s.ctx, atoll.MainProcess)
	if err != nil {
		return atoll.Exit{}, s.why(err)
	}
	defer s.limit(p, time.Duration(f.timeout))()
	return s.follow(p, func(ctx context.Context) error {
		return p.Attach(ctx, &atoll.Attachment{Stdin: s.stdin, Stdout: s.stdout, Stderr: s.stderr, Gap: s.gap})
	})
}

// other runs the command besides an idle main process.
func (f *runFlags) other(s *console, sb atoll.Sandbox, args []string) (atoll.Exit, error) {
	p, err := sb.Exec(s.ctx, &atoll.Command{
		Args: args, TTY: s.size, Timeout: f.timeout, Stdin: s.stdin, Stdout: s.stdout, Stderr: s.stderr,
	})
	if err != nil {
		return atoll.Exit{}, s.why(err)
	}
	f.process = p.ID()
	return s.follow(p, nil)
}

// leave removes the sandbox, or stops it when it is to be kept.
func (f *runFlags) leave(s *console, sb atoll.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), 2*atoll.DefaultStopGrace)
	defer cancel()
	if f.keep {
		return sb.Stop(ctx, atoll.DefaultStopGrace)
	}
	return sb.Remove(ctx, atoll.RemoveVolumes())
}
