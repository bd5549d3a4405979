//go:build !client

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/config/stack"
	_ "github.com/seed46cd37a8/atoll/internal/secretstore" // reads the values of secrets in stores
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

// startedBy is the path of the client that has started this program, or "".
var startedBy string

// runOther runs what is not a command, and reports whether it did: a plugin, or the refusal of a client of another build.
func runOther(args []string) (exit int, done bool) {
	if client, ok := os.LookupEnv(clientVersion); ok {
		startedBy = os.Getenv(clientProgram)
		_, _ = os.Unsetenv(clientVersion), os.Unsetenv(clientProgram) // cannot fail
		if own := buildVersion().firstLine(); client != own {
			fmt.Fprintf(os.Stderr, "atoll: this program is %s, but atoll-server beside it is %s: install both from one release\n", client, own)
			return exitFailed, true
		}
	}
	if isPlugin(args) {
		return servePlugin(), true
	}
	return 0, false
}

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
		b, err := stack.NewBuilder(cfg)
		if err != nil {
			return nil, err
		}
		return b.Open(stack.Options{Log: r.Log})
	})
}
