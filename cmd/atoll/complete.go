package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
)

// A completion offers words to the shell.
type completion = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective)

// completeSandboxes offers the sandboxes that are not named yet.
func (a *app) completeSandboxes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, args, func(ctx context.Context, c *connection) (names []string, err error) {
		all, err := c.List(ctx, atoll.Filter{})
		for _, st := range all {
			names = append(names, shownName(st))
		}
		return names, err
	})
}

// completeSandbox offers sandboxes for the first word, and nothing after it.
func (a *app) completeSandbox(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeSandboxes(cmd, args, typed)
}

// completeProcess offers sandboxes for the first word, and then the processes
// of that one.
func (a *app) completeProcess(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return a.completeSandbox(cmd, args, typed)
	}
	return a.complete(cmd, args, func(ctx context.Context, c *connection) (ids []string, err error) {
		sb, err := c.find(ctx, args[0])
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

// completeVolumes offers the volumes of the project.
func (a *app) completeVolumes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, args, func(ctx context.Context, c *connection) (names []string, err error) {
		all, err := atoll.Volumes(ctx, c.Provider, c.project)
		for _, v := range all {
			names = append(names, v.Name)
		}
		return names, err
	})
}

// completeSnapshots offers the ids of snapshots.
func (a *app) completeSnapshots(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, args, func(ctx context.Context, c *connection) (ids []string, err error) {
		all, err := atoll.Snapshots(ctx, c.Provider)
		for _, s := range all {
			ids = append(ids, s.ID)
		}
		return ids, err
	})
}

// complete offers what list finds, but for what is written already.
func (a *app) complete(cmd *cobra.Command, args []string, list func(ctx context.Context, c *connection) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	a.takeSettings(cmd.Flags())
	var words []string
	err := a.with(cmd, func(ctx context.Context, c *connection) (err error) {
		words, err = list(ctx, c)
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	words = slices.DeleteFunc(words, func(w string) bool { return slices.Contains(args, w) })
	return words, cobra.ShellCompDirectiveNoFileComp
}

// completeCommands offers the commands below the one that args name.
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

// words offers always the same ones.
func words(list ...string) completion {
	return cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)
}

// completeFlags offers the words that flags of many commands choose from.
func completeFlags(root *cobra.Command) {
	var providers []string
	for _, e := range config.Providers() {
		providers = append(providers, e.Name)
	}
	fixed := map[string]completion{
		"provider":   words(providers...),
		"log-level":  words("auto", "debug", "info", "warn", "error"),
		"log-format": words("text", "json"),
		"network":    words(string(atoll.NetworkNone), string(atoll.NetworkOn), string(atoll.NetworkEgress)),
		"signal":     words("HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP"),
	}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for name, complete := range fixed {
			if cmd.LocalFlags().Lookup(name) != nil {
				_ = cmd.RegisterFlagCompletionFunc(name, complete) // fails for flags that are not there only
			}
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(root)
}
