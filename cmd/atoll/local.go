//go:build !client

package main

import (
	"cmp"
	"context"
	"errors"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/config/stack"
	"github.com/seed46cd37a8/atoll/layer/trace"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// loadBuilder loads the configuration at the first call, and returns what opens it.
func (a *app) loadBuilder() (*stack.Builder, error) {
	cfg, err := a.loadConfig()
	if err != nil {
		return nil, err
	}
	return stack.NewBuilder(cfg)
}

// serveSelf opens the stack and serves it to a client in this process.
func (a *app) serveSelf(ctx context.Context, cfg *config.Config) (*connection, error) {
	b, err := stack.NewBuilder(cfg)
	if err != nil {
		return nil, err
	}
	opts := stack.Options{Log: a.newNoteLogger(cfg), Traces: a.span.traces, Server: a.longRunning}
	if cfg.IsSet("log.level") {
		opts.Calls = opts.Log // otherwise the command reports errors, and nobody has asked for more
	}
	p, err := b.Open(opts)
	if err != nil {
		return nil, stateDirError(cfg, err)
	}
	audit, err := b.OpenAudit(ctx, stack.Options{Log: opts.Log})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	keys, err := b.Keys(opts.Log, audit)
	if err != nil {
		return nil, errors.Join(err, audit.Close(), p.Close())
	}
	pipe := api.NewPipe()
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { // while this command prepares its first request
		defer pipe.Close()
		handler, err := api.NewHandler(p, api.Options{Extract: trace.Extract, Keys: keys, Audit: audit})
		if err == nil {
			err = api.Serve(serving, handler, pipe)
		}
		served <- err
	}()
	end := func() error {
		stop()
		return errors.Join(<-served, keys.Close(), audit.Close(), p.Close())
	}
	info := p.Info()
	maker, _, err := findMember(ctx, p, cmp.Or(cfg.ProviderOf(cfg.Project), info.Name))
	if err != nil {
		return nil, errors.Join(err, end())
	}
	client, err := client.New(ctx, client.Options{Dial: pipe.Dial, Info: &info, Inject: injectTrace})
	if err != nil {
		return nil, errors.Join(err, end())
	}
	lives := maker.Caps.Survives || maker.Problem != "" // Create reports the problem
	return &connection{Provider: client, client: client, survives: lives, close: end}, nil
}

// stateDirError returns an error about the state directory if it is unusable, and err otherwise.
func stateDirError(cfg *config.Config, err error) error {
	if probe := probeDir(cfg.StateDir); !probe.OK {
		return atoll.Errorf("", "", atoll.KindOf(err), "state_dir %s cannot be used: %s: %s", cfg.StateDir, probe.Reason, probe.Fix)
	}
	return err
}
