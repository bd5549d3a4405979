//go:build linux

package gvisor_test

import (
	"context"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// TestDurableConformance runs the suite's promises about commands with durable commands, which take another way.
func TestDurableConformance(t *testing.T) {
	needGVisor(t)
	opts := []providertest.Option{providertest.Slow(3), providertest.Shared("exec", "output", "time", "tree", "tty"), providertest.Only("exec", "output", "time", "tree", "tty")}
	if !testenv.RunAll() {
		opts = append(opts, providertest.WireOnly("exec", "output", "time", "tree", "tty"))
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		return durableProvider{atoll.ProviderLayer{Provider: openProvider(t)}}
	}, opts...)
}

// A durableProvider makes all commands durable.
type durableProvider struct{ atoll.ProviderLayer }

func (p durableProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := p.Provider.Create(ctx, spec)
	return makeDurable(sb), err
}

func (p durableProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := p.Provider.Get(ctx, id)
	return makeDurable(sb), err
}

type durableSandbox struct{ atoll.SandboxLayer }

func makeDurable(sb atoll.Sandbox) atoll.Sandbox {
	if sb == nil {
		return nil
	}
	return durableSandbox{atoll.SandboxLayer{Sandbox: sb}}
}

func (s durableSandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	durable := *cmd
	durable.Durable = true
	return s.Sandbox.Exec(ctx, &durable)
}
