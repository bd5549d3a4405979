package main

import (
	"context"
	"os"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

// isPlugin reports whether a program has started this one by package provider/auto, to use its providers. On a
// terminal the argument is an unknown command.
func isPlugin(args []string) bool {
	return len(args) == 1 && args[0] == plugin.Argument && !isTerminal(os.Stdin)
}

// servePlugin serves the providers of the configuration to the program that started this one.
func servePlugin() int {
	return plugin.ServeProvider("atoll", func(_ context.Context, r plugin.Request) (atoll.Provider, error) {
		cfg, err := config.Load(config.Source{Env: os.Environ(), Flags: map[string]string{"state_dir": r.StateDir, "context": config.DefaultContext}})
		if err != nil {
			return nil, err
		}
		return config.Open(cfg, config.Options{Log: r.Log})
	})
}
