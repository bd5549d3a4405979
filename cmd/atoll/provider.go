package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll/provider/plugin"
)

func newProvider(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "provider", Short: "Test providers that are programs of their own"}
	cmd.AddCommand(newProviderTest(a))
	return cmd
}

func newProviderTest(a *app) *cobra.Command {
	var s plugin.Suite
	var verbose bool
	var run string
	cmd := &cobra.Command{
		Use:   "test [flags] NAME",
		Short: "Run the conformance suite against a plugin",
		Long: `Test runs the suite that all of atoll's own providers pass against the provider of
the program atoll-NAME, and exits with 1 if the provider breaks a promise. What the
provider says that it cannot do is not tested.

The suite opens the provider many times, each time as a program with a state
directory of its own. It makes and removes sandboxes: do not run it where others
work.`,
		Example: `  atoll provider test sample
  atoll provider test sample --group exec,output -v
  atoll provider test sample --run files/stat`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			known, err := cfg.Suite(args[0])
			if err != nil {
				return err
			}
			known.Image, known.Groups, known.Slow = s.Image, s.Groups, s.Slow
			var flags []string
			if verbose {
				flags = append(flags, "-test.v")
			}
			if run != "" {
				flags = append(flags, "-test.run=^"+args[0]+"$/"+run)
			}
			return a.runSuite(cmd, known, flags)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.Image, "image", "", "image of the sandboxes; the provider's default if it is empty")
	f.StringSliceVar(&s.Groups, "group", nil, "test these groups of promises only, like exec,files")
	f.StringVar(&run, "run", "", "test the promises that match GROUP/PROMISE, two regular expressions")
	f.Float64Var(&s.Slow, "slow", 0, "multiply the deadlines by this, where sandboxes are slow to make")
	f.BoolVarP(&verbose, "verbose", "v", false, "print each promise as it is tested")
	return cmd
}

// runSuite runs the program of the suite.
func (a *app) runSuite(cmd *cobra.Command, s plugin.Suite, flags []string) error {
	program, err := plugin.Find("provider-test")
	if err != nil {
		return err
	}
	input, err := json.Marshal(s)
	if err != nil {
		return err
	}
	suite := exec.CommandContext(cmd.Context(), program, flags...)
	suite.Stdin, suite.Stdout, suite.Stderr, suite.Env = bytes.NewReader(input), a.stdout, a.stderr, a.env
	err = suite.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exitError(exit.ExitCode())
	}
	return err
}
