package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

func newCreate(a *app) *cobra.Command {
	var f specFlags
	var noStart, stdin, tty bool
	cmd := &cobra.Command{
		Use:   "create [flags] [--] [COMMAND [ARG...]]",
		Short: "Make a sandbox and print its id",
		Long: `Create makes a sandbox, starts it, and prints its id. With a command, the
command is its main process, whose end stops the sandbox; without one it stays
idle until it is stopped: what an image would run by itself is not run. The
sandbox lives on when this program has ended.`,
		Example: `  atoll create --name web
  atoll create --name cache -v data:/data --memory 1g --image redis -- redis-server --dir /data`,
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := f.build(a, args)
			if err != nil {
				return err
			}
			spec.NoStart, spec.OpenStdin = noStart, stdin
			if tty {
				size := a.terminalSize()
				spec.TTY = &size
			}
			return a.create(cmd, spec, f.quiet)
		},
	}
	f.register(cmd.Flags())
	cmd.Flags().BoolVar(&noStart, "no-start", false, "only make it; atoll start starts it")
	cmd.Flags().BoolVarP(&stdin, "interactive", "i", false, "keep the command's stdin open for atoll attach")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "give the command a terminal (without a name: where tty has to find one, run script or tmux inside)")
	stopAtCommand(cmd)
	return cmd
}

// create makes a sandbox that lives on, and prints its id.
func (a *app) create(cmd *cobra.Command, spec *atoll.Spec, quiet bool) error {
	return a.with(cmd, func(ctx context.Context, c *connection) error {
		if err := c.mustLive(); err != nil {
			return err
		}
		if err := a.prepare(ctx, c, spec, quiet); err != nil {
			return err
		}
		sb, err := c.Create(ctx, spec)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(a.stdout, sb.ID())
		return err
	})
}
