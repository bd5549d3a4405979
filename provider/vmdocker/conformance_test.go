//go:build linux

package vmdocker_test

import (
	"context"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// inProject adds a project to specs without one, as the command line does.
type inProject struct {
	atoll.ProviderLayer
}

func (p inProject) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if spec.Project == "" {
		spec = spec.Clone()
		spec.Project = atoll.DefaultProject
	}
	return p.ProviderLayer.Create(ctx, spec)
}

// measured are the groups whose promises about the wire the test runs with emulated machines: a machine is
// between a caller and the engine. The other groups make a sandbox for almost every promise, which takes 10 to
// 60 s with an emulated machine instead of a third of a second. They check code of provider/docker, which runs
// the whole suite.
var measured = []string{"exec", "dial"}

// everything skips tests that take long with emulated machines, unless all tests are requested.
func everything(t *testing.T, why string) {
	t.Helper()
	need(t)
	p := open(t)
	if p.machines.Slow(t.Context()) > 1 && !testenv.RunAll() {
		t.Skipf("emulated: %s; CHECK_ALL=1 runs it", why)
	}
}

func TestConformance(t *testing.T) {
	p := open(t)
	sb := create(t, p, atoll.Spec{Project: atoll.DefaultProject}) // the machine does not belong to a promise
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Fatal(err)
	}
	factor := p.machines.Slow(t.Context())
	opts := []providertest.Option{
		providertest.Slow(float64(3 * factor)), providertest.Count(4),
		providertest.Shared("exec", "output", "time", "tree", "tty", "files", "sub", "dial", "pause", "network", "escape", "exhaustion"),
		providertest.Reopen(func(t *testing.T, _ atoll.Provider) atoll.Provider {
			return inProject{atoll.ProviderLayer{Provider: reopen(t)}}
		}),
	}
	if factor > 1 && !testenv.RunAll() {
		opts = append(opts, providertest.Only(measured...), providertest.WireOnly(), providertest.SkipRest("machines are emulated here, and containers take too long: CHECK_ALL=1 runs all groups"))
	} else {
		tiny := testimage.Tiny(t, "text")
		opts = append(opts, providertest.PullableImage(testimage.Serve(t).Push("tiny:1", tiny)))
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		p := reopen(t)
		t.Cleanup(func() { removeOthers(t) })
		return inProject{atoll.ProviderLayer{Provider: p}}
	}, opts...)
}

// reopen opens the lab once more; the caller closes it.
func reopen(t *testing.T) atoll.Provider {
	t.Helper()
	p, err := shared.open()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// removeOthers removes the projects that a promise has created.
func removeOthers(t *testing.T) {
	p, err := shared.open()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx := context.WithoutCancel(t.Context())
	all, err := p.machines.List(ctx, atoll.Filter{})
	if err != nil {
		t.Error(err)
	}
	for _, m := range all {
		if m.Spec.Project != atoll.DefaultProject {
			if err := p.RemoveProject(ctx, m.Spec.Project); err != nil {
				t.Error(err)
			}
		}
	}
}
