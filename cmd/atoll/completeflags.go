//go:build !client

package main

import (
	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
)

// completeFlags registers completions of flags that many commands have.
func completeFlags(a *app, root *cobra.Command) {
	var providers []string
	for _, e := range config.Providers() {
		providers = append(providers, e.Name)
	}
	completions := map[string]completion{
		"context":    a.completeContexts,
		"image":      a.completeImage,
		"snapshot":   a.completeSnapshots,
		"filter":     a.completeFilter,
		"pull":       fixedWords(string(atoll.PullMissing), string(atoll.PullAlways), string(atoll.PullNever)),
		"provider":   fixedWords(providers...),
		"log-level":  fixedWords("auto", "debug", "info", "warn", "error"),
		"log-format": fixedWords("text", "json"),
		"color":      fixedWords("auto", "always", "never"),
		"network":    fixedWords(string(atoll.NetworkNone), string(atoll.NetworkOn), string(atoll.NetworkEgress)),
		"signal":     fixedWords("HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP"),
	}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for name, complete := range completions {
			// LocalFlags would copy the flags of all parents, for each command.
			if cmd.Flags().Lookup(name) != nil || cmd.PersistentFlags().Lookup(name) != nil {
				_ = cmd.RegisterFlagCompletionFunc(name, complete) // fails for missing flags only
			}
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(root)
}

// completeImage completes an image of a new sandbox: those that are stored, and what is always there.
func (a *app) completeImage(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	words, _ := a.completeImages(cmd, nil, typed) // without a provider that stores images there are none
	return append(words, hostImage), cobra.ShellCompDirectiveNoFileComp
}
