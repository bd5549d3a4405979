package main

import (
	"cmp"
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

	forwards []forwarding // ports of -p that this program forwards

	kept    bool   // the sandbox was stopped instead of removed
	process string // id of the command's process, unless it is the main process
}

func newRun(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [--] [COMMAND [ARG...]]",
		Short: "Run a command in a new sandbox, and remove the sandbox afterwards",
		Long: `Run creates a sandbox, runs the command in it, and removes the sandbox with all its
files when the command ends. It uses a warm sandbox if a server has one: see atoll
pool. Without a command on a terminal, it is a shell, as with -it.

The output of the command is forwarded unchanged; messages of Atoll go to stderr.
Without -i the command reads an empty stdin. Signals are forwarded to the command;
three ^C in quick succession kill it, unless it has a terminal (-t), which handles
^C itself.

Run exits with the code of the command, or 124 if --timeout was reached, 125 if Atoll
failed, 126 if the command could not be started, and 127 if it was not found. Commands
other than run, exec and shell exit with 1 if they fail, and 2 if the command line is
wrong.
` + sharedFilesHelp,
		Example: `  atoll run -- sh -c 'echo $((6*7)); exit 3'
  echo hi | atoll run -i -- cat
  atoll run                        # a shell
  atoll run -v .:/work --network on --timeout 5m -- make test`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.runCommand(a, cmd, args) },
	}
	f.specFlags.addFlags(cmd.Flags())
	f.streamFlags.addFlags(cmd.Flags())
	cmd.Flags().BoolVarP(&f.detach, "detach", "d", false, "print the id of the sandbox and leave the command running")
	cmd.Flags().BoolVar(&f.keep, "keep", false, "stop the sandbox when the command ends, instead of removing it")
	cmd.Flags().BoolVar(&f.rm, "rm", true, "remove the sandbox when the command ends; --rm=false is --keep")
	cmd.Flags().Var((*durationValue)(&f.timeout), "timeout", "kill the command after so long, like 5m")
	groupFlags(cmd.Flags())
	stopAtCommand(cmd)
	return cmd
}

func (f *runFlags) runCommand(a *app, cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		if f.detach {
			return usageErrorf("-d needs a command: use atoll create for a sandbox without one")
		}
		if err := f.defaultToShell(a, false); err != nil {
			return err
		}
	}
	if !f.detach {
		var err error
		if f.forwards, err = f.takeForwards(); err != nil {
			return err
		}
	}
	spec, err := f.buildSpec(cmd.Context(), a, args)
	if err != nil {
		return err
	}
	f.keep = f.keep || !f.rm
	spec.AutoRemove, spec.OpenStdin = !f.keep, f.stdin && !f.keep
	if f.timeout < 0 {
		return usageErrorf("timeout %s: must not be negative", f.timeout)
	}
	if f.detach {
		return f.runDetached(a, cmd, spec)
	}
	s, err := f.newConsole(cmd.Context(), a)
	if err != nil {
		return err
	}
	defer s.closeConsole()
	c, err := a.openConnection(s.ctx)
	if err != nil {
		return s.breakCause(err)
	}
	if !c.survives {
		s.detach = nil // after the end of this process nothing would remain to detach from
	}
	exit, id, err := f.runAttended(s, c, spec)
	c.named.addReference(id, spec.Name)
	err = errors.Join(c.explainError(s.ctx, err), c.Close())
	s.closeConsole()
	if errors.Is(err, errDetached) {
		a.printMessage("detached: run atoll attach %s to reconnect", strings.TrimSpace(shortID(id)+" "+f.process))
		return nil
	}
	if f.kept {
		a.printMessage("stopped sandbox %s", id)
	}
	if errors.Is(err, atoll.ErrCommandNotFound) && spec.Image == "" && len(args) > 0 && cmd.ArgsLenAtDash() < 0 {
		return errors.Join(err, fmt.Errorf("if it is an image, write: atoll run --image %s -- COMMAND", args[0]))
	}
	if err != nil {
		return err
	}
	return f.finishCommand(a, s, id, exit)
}

// runDetached runs the command without waiting for it.
func (f *runFlags) runDetached(a *app, cmd *cobra.Command, spec *atoll.Spec) error {
	if f.stdin || f.json || f.timeout != 0 {
		return usageErrorf("-d cannot be combined with -i, --json or --timeout")
	}
	if f.tty {
		size := a.terminalSize()
		spec.TTY = &size
	}
	return a.createSandbox(cmd, spec, f.quiet)
}

// runAttended creates the sandbox and waits for the end of its command. Then it removes the sandbox, or with --keep
// stops it, in any case.
func (f *runFlags) runAttended(s *console, c *connection, spec *atoll.Spec) (exit atoll.Exit, id string, err error) {
	if err := s.app.prepareSandbox(s.ctx, c, spec, f.quiet); err != nil {
		return exit, "", s.breakCause(c.adviseCreate(spec, err))
	}
	fwd, err := f.publishPorts(s.ctx, s.app, c, spec)
	if err != nil {
		return exit, "", s.breakCause(err)
	}
	if fwd != nil {
		defer fwd.Close()
	}
	args := spec.Cmd
	idle, err := f.idleSpec(s.ctx, c, spec)
	if err != nil {
		return exit, "", s.breakCause(err)
	}
	if idle != nil {
		spec = idle
	} else {
		spec.TTY = s.size
		if f.timeout > 0 && spec.TTL == 0 {
			spec.TTL = f.timeout + atoll.Duration(time.Minute) // in case this process is killed before
		}
	}
	shared := readHostFiles(spec)
	began := time.Now()
	end := s.app.watchCreation(spec, f.quiet)
	sb, err := c.Create(s.ctx, spec)
	end()
	if err != nil {
		return exit, "", s.breakCause(c.adviseCreate(spec, err))
	}
	defer func() {
		if errors.Is(err, errDetached) {
			return
		}
		defer s.app.warnHostFiles(spec, shared) // after the last program has ended
		left := f.leaveSandbox(s, sb)
		f.kept = f.keep && left == nil
		gone := atoll.KindOf(err) == atoll.ErrUnavailable && atoll.KindOf(left) == atoll.ErrUnavailable
		if left != nil && !gone { // otherwise err reports that the server is gone
			s.app.printMessage("%v", left)
		}
	}()
	if fwd != nil {
		fwd.serveSandbox(s.ctx, sb)
	}
	if err := s.takeTerminal(); err != nil {
		return exit, sb.ID(), err
	}
	if idle != nil {
		exit, err = f.execCommand(s, sb, args)
	} else {
		exit, err = f.followMain(s, sb)
	}
	if err == nil {
		s.reportRefusals(sb, "", began, exit)
	}
	return exit, sb.ID(), err
}

// idleSpec returns the spec of an idle sandbox if the command should not be the main process: with --keep, since the
// output of a main process is lost when its end stops the sandbox, for a shell, which the sandbox chooses, or if a warm
// sandbox is reserved. It returns nil otherwise.
func (f *runFlags) idleSpec(ctx context.Context, c *connection, spec *atoll.Spec) (*atoll.Spec, error) {
	idle := spec.Clone()
	idle.Cmd, idle.AutoRemove, idle.OpenStdin = nil, false, false
	if f.keep {
		return idle, nil
	}
	if idle.IdleStop == 0 { // in case this process is killed before it removes the sandbox
		idle.IdleStop, idle.IdleRemove = config.RunIdleTimeout, true
	}
	id, err := atoll.Reserve(ctx, c.Provider, idle)
	if err != nil || id == "" && len(spec.Cmd) > 0 {
		return nil, err
	}
	idle.ID = id
	if id == "" && spec.IdleStop == 0 {
		maker, _, err := findMember(ctx, c.Provider, cmp.Or(c.maker, c.Info().Name))
		if err != nil {
			return nil, err
		}
		if !maker.Caps.IdleStop {
			idle.IdleStop, idle.IdleRemove = 0, spec.IdleRemove
		}
	}
	return idle, nil
}

// followMain waits for the main process.
func (f *runFlags) followMain(s *console, sb atoll.Sandbox) (atoll.Exit, error) {
	p, err := sb.Process(s.ctx, atoll.MainProcess)
	if err != nil {
		return atoll.Exit{}, s.breakCause(err)
	}
	defer s.limitTime(p, time.Duration(f.timeout))()
	return s.followProcess(p, func(ctx context.Context) error {
		return p.Attach(ctx, &atoll.Attachment{Stdin: s.stdin, Stdout: s.stdout, Stderr: s.stderr, Gap: s.reportGap})
	})
}

// execCommand runs the command beside an idle main process.
func (f *runFlags) execCommand(s *console, sb atoll.Sandbox, args []string) (atoll.Exit, error) {
	p, err := sb.Exec(s.ctx, &atoll.Command{
		Args: args, TTY: s.size, Timeout: f.timeout, Stdin: s.stdin, Stdout: s.stdout, Stderr: s.stderr,
	})
	if err != nil {
		return atoll.Exit{}, s.breakCause(err)
	}
	f.process = p.ID()
	return s.followProcess(p, nil)
}

// leaveSandbox removes the sandbox, or stops it with --keep.
func (f *runFlags) leaveSandbox(s *console, sb atoll.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), 2*atoll.DefaultStopGrace)
	defer cancel()
	if f.keep {
		return sb.Stop(ctx, atoll.DefaultStopGrace)
	}
	return sb.Remove(ctx, atoll.RemoveVolumes())
}
