//go:build !client

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll/internal/program"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

func newProvider(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "provider", Short: "Test providers that are plugins"}
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
		Long: `Test runs the conformance suite, which all built-in providers pass, against the
provider of the program atoll-NAME. The exit code is 1 if the provider breaks a
promise. Features that the provider does not claim are not tested.

The suite opens the provider many times, each time as a program with a state
directory of its own. It creates and removes sandboxes: do not run it where others
work.`,
		Example: `  atoll provider test sample
  atoll provider test sample --group exec,output -v
  atoll provider test sample --run files/stat`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := a.loadBuilder()
			if err != nil {
				return err
			}
			known, err := b.Suite(args[0])
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
	f.StringVar(&s.Image, "image", "", "image of the sandboxes; empty for the provider's default")
	f.StringSliceVar(&s.Groups, "group", nil, "test these groups of promises only, like exec,files")
	f.StringVar(&run, "run", "", "test the promises that match GROUP/PROMISE, two regular expressions")
	f.Float64Var(&s.Slow, "slow", 0, "multiply the deadlines by this factor, if sandboxes are slow to create")
	f.BoolVarP(&verbose, "verbose", "v", false, "print each promise during its test")
	return cmd
}

// runSuite runs the program of the suite.
func (a *app) runSuite(cmd *cobra.Command, s plugin.Suite, flags []string) error {
	path, err := program.Find("provider-test")
	if err != nil {
		return err
	}
	input, err := json.Marshal(s)
	if err != nil {
		return err
	}
	suite := exec.CommandContext(cmd.Context(), path, flags...)
	suite.Stdin, suite.Stdout, suite.Stderr, suite.Env = bytes.NewReader(input), a.stdout, a.stderr, a.env
	err = suite.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exitError(exit.ExitCode())
	}
	return err
}
