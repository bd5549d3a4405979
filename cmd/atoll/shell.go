package main

import (
	"github.com/spf13/cobra"
)

// errNoCommand returns the error for run and exec without a command.
func errNoCommand() error {
	return usageErrorf("no command given: name one, or use -t for a shell; on a terminal, a shell is the default")
}

// defaultToShell sets -i and -t for a command line without a command if stdin and stdout are a terminal and the
// command is not detached. Otherwise it returns an error, unless -t is given.
func (f *streamFlags) defaultToShell(a *app, detached bool) error {
	switch {
	case f.json:
		return usageErrorf("no command given: --json needs one")
	case !detached && isTerminal(a.stdin) && isTerminal(a.stdout):
		f.stdin, f.tty = true, true
	case !f.tty:
		return errNoCommand()
	}
	return nil
}

func newShell(a *app) *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:     "shell [flags] SANDBOX",
		Aliases: []string{"ssh"},
		Short:   "Open a shell in a running sandbox",
		Long: `Shell opens the shell of the user in a running sandbox, and connects your terminal
to it. It is atoll exec -it without a command, and needs no SSH server.`,
		Example: `  atoll shell web
  atoll shell -u nobody -w /tmp web`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageErrorf("a shell takes no command: use atoll exec %s -- COMMAND", args[0])
			}
			if !isTerminal(a.stdin) || !isTerminal(a.stdout) {
				return usageErrorf("a shell needs a terminal: use atoll exec %s -- COMMAND", args[0])
			}
			return f.runCommand(a, cmd, args[0])
		},
	}
	f.env.addFlags(cmd.Flags())
	f.addPlaceFlags(cmd.Flags())
	f.addDetachFlag(cmd.Flags())
	return cmd
}
