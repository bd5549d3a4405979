package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
)

// A completion returns completions for the shell.
type completion = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective)

// completeSandboxes completes sandboxes that are not among args yet.
func (a *app) completeSandboxes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.completeWith(cmd, args, func(ctx context.Context, c *connection) (names []string, err error) {
		all, err := c.List(ctx, atoll.Filter{})
		for _, st := range all {
			names = append(names, shownName(st))
		}
		return names, err
	})
}

// completeSandbox completes a sandbox as the first argument.
func (a *app) completeSandbox(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeSandboxes(cmd, args, typed)
}

// completeProcess completes a sandbox as the first argument, and then its processes.
func (a *app) completeProcess(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return a.completeSandbox(cmd, args, typed)
	}
	return a.completeWith(cmd, args, func(ctx context.Context, c *connection) (ids []string, err error) {
		sb, err := c.findSandbox(ctx, args[0])
		if err != nil {
			return nil, err
		}
		all, err := atoll.Processes(ctx, sb)
		for _, p := range all {
			ids = append(ids, p.ID+"\t"+shownCommand(p.Args))
		}
		return ids, err
	})
}

// completeVolumes completes the volumes of the project.
func (a *app) completeVolumes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.completeWith(cmd, args, func(ctx context.Context, c *connection) (names []string, err error) {
		all, err := atoll.Volumes(ctx, c.Provider, c.project)
		for _, v := range all {
			names = append(names, v.Name)
		}
		return names, err
	})
}

// completeSnapshots completes the ids of snapshots.
func (a *app) completeSnapshots(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.completeWith(cmd, args, func(ctx context.Context, c *connection) (ids []string, err error) {
		all, err := atoll.Snapshots(ctx, c.Provider)
		for _, s := range all {
			ids = append(ids, s.ID)
		}
		return ids, err
	})
}

// completeWith completes the words that list returns, except for those in args.
func (a *app) completeWith(cmd *cobra.Command, args []string, list func(ctx context.Context, c *connection) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	a.takeSettings(cmd.Flags())
	var words []string
	err := a.withConnection(cmd, func(ctx context.Context, c *connection) (err error) {
		words, err = list(ctx, c)
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	words = slices.DeleteFunc(words, func(w string) bool { return slices.Contains(args, w) })
	return words, cobra.ShellCompDirectiveNoFileComp
}

// completeCommands completes the commands below the one in args.
func completeCommands(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	about, _, err := cmd.Root().Find(args)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, c := range about.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name()+"\t"+c.Short)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// fixedWords returns a completion of fixed words.
func fixedWords(list ...string) completion {
	return cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)
}

// completeFlags registers completions of flags that many commands have.
func completeFlags(root *cobra.Command) {
	var providers []string
	for _, e := range config.Providers() {
		providers = append(providers, e.Name)
	}
	fixed := map[string]completion{
		"provider":   fixedWords(providers...),
		"log-level":  fixedWords("auto", "debug", "info", "warn", "error"),
		"log-format": fixedWords("text", "json"),
		"color":      fixedWords("auto", "always", "never"),
		"network":    fixedWords(string(atoll.NetworkNone), string(atoll.NetworkOn), string(atoll.NetworkEgress)),
		"signal":     fixedWords("HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP"),
	}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for name, complete := range fixed {
			if cmd.LocalFlags().Lookup(name) != nil {
				_ = cmd.RegisterFlagCompletionFunc(name, complete) // fails for missing flags only
			}
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(root)
}
