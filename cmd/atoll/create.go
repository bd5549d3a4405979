package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

// sharedFilesHelp says what shared directories lack.
const sharedFilesHelp = `
With -v, programs inside see what others write to a directory, but unless the provider
is docker they get no inotify events of it: have watchers poll, as with
-e CHOKIDAR_USEPOLLING=1 or -e WATCHPACK_POLLING=true. They do get events of what Atoll
itself writes to a running sandbox: atoll cp, the API, SFTP and the tools of MCP. Nor do
file locks (flock, fcntl) hold between two sandboxes, or a sandbox and this machine:
mount with :ro in all but one, or let one program keep the lock for all.`

func newCreate(a *app) *cobra.Command {
	var f specFlags
	var noStart, stdin, tty bool
	cmd := &cobra.Command{
		Use:   "create [flags] [--] [COMMAND [ARG...]]",
		Short: "Create a sandbox and print its id",
		Long: `Create creates a sandbox, starts it, and prints its id. With a command, the command
is the main process, whose end stops the sandbox; without one the sandbox remains
idle until it is stopped, and the command of the image does not run. The sandbox
survives the end of this program.
` + sharedFilesHelp,
		Example: `  atoll create --name web
  atoll create --name cache -v data:/data --memory 1g --image redis -- redis-server --dir /data`,
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := f.buildSpec(cmd.Context(), a, args)
			if err != nil {
				return err
			}
			spec.NoStart, spec.OpenStdin = noStart, stdin
			if tty {
				size := a.terminalSize()
				spec.TTY = &size
			}
			return a.createSandbox(cmd, spec, f.quiet)
		},
	}
	f.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&noStart, "no-start", false, "do not start the sandbox; atoll start does")
	cmd.Flags().BoolVarP(&stdin, "interactive", "i", false, "keep the command's stdin open for atoll attach")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "give the command a terminal")
	groupFlags(cmd.Flags())
	stopAtCommand(cmd)
	return cmd
}

// createSandbox creates a sandbox that survives this process, and prints its id.
func (a *app) createSandbox(cmd *cobra.Command, spec *atoll.Spec, quiet bool) error {
	return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
		if err := c.requireSurvival(); err != nil {
			return err
		}
		if err := a.prepareSandbox(ctx, c, spec, quiet); err != nil {
			return c.adviseCreate(spec, err)
		}
		end := a.watchCreation(spec, quiet)
		sb, err := c.Create(ctx, spec)
		end()
		if err != nil {
			return c.adviseCreate(spec, err)
		}
		_, err = fmt.Fprintln(a.stdout, sb.ID())
		return err
	})
}
