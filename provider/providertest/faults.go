package providertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/intercept"
)

// A Plan decides which call of a Faulty provider fails, and records the calls.
type Plan struct {
	nth int // counted from 1; 0 fails none

	mu       sync.Mutex
	calls    []string
	fired    bool
	provider []atoll.Provider // the providers that Faulty wraps
}

// FailCall returns a plan that fails the nth call with ErrUnavailable before it reaches the provider.
// The plan counts from 1, over all methods of the provider, its sandboxes, processes and files. With 0
// no call fails.
func FailCall(nth int) *Plan { return &Plan{nth: nth} }

// Fired reports whether the call that was to fail has been made.
func (p *Plan) Fired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fired
}

// Calls returns the calls so far, as "Sandbox.Exec".
func (p *Plan) Calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// recordCall records a call and returns an error if the plan fails it.
func (p *Plan) recordCall(name, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, name)
	if len(p.calls) != p.nth {
		return nil
	}
	p.fired = true
	_, method, _ := strings.Cut(name, ".")
	return atoll.Errorf(strings.ToLower(method), id, atoll.ErrUnavailable, "call %d failed as planned", p.nth)
}

// Faulty returns a layer around p that fails calls as planned, before p sees them.
func Faulty(p atoll.Provider, plan *Plan) atoll.Provider {
	plan.mu.Lock()
	defer plan.mu.Unlock()
	plan.provider = append(plan.provider, p)
	return intercept.New(p, intercept.All, func(ctx context.Context, c *intercept.Call, next intercept.Next) error {
		if err := plan.recordCall(c.Op, cmp.Or(c.Process, c.Sandbox, c.Name, c.Project)); err != nil {
			return err
		}
		return next(ctx)
	})
}

// EachFault runs the scenario repeatedly and fails its first call, then its second and so on, until a
// run makes no call that fails. The scenario opens a provider each time, wraps it with Faulty and the
// plan, and puts the code under test around that. It may fail the test only if one failed call should
// have had no effect. When the scenario returns, the provider that Faulty wraps must have no sandbox
// and no volume. After its cleanups, no goroutine, descriptor, child or mount may be left.
func EachFault(t *testing.T, scenario func(t *testing.T, plan *Plan), opts ...Option) {
	const enough = 1000
	cfg := newConfig(opts)
	for n := 1; n <= enough; n++ {
		plan := FailCall(n)
		t.Run(fmt.Sprintf("call %d fails", n), func(t *testing.T) {
			checkLeaks(t, cfg)
			scenario(t, plan)
			plan.checkNothingLeft(t, cfg)
			if t.Failed() {
				t.Logf("the calls were %s", strings.Join(plan.Calls(), ", "))
			}
		})
		if !plan.Fired() {
			return
		}
	}
	t.Errorf("the scenario makes more than %d calls", enough)
}

// checkNothingLeft checks that the wrapped providers have no sandbox and no volume.
func (p *Plan) checkNothingLeft(t *testing.T, cfg *config) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cfg.longLimit())
	defer cancel()
	for _, leaf := range p.provider {
		if err := checkEmpty(ctx, leaf); err != nil {
			t.Errorf("after the scenario: %v", err)
		}
	}
}

var faultPromises = []promise{
	{"whichever call fails, its error is returned and nothing is left", nil, func(t *testing.T, h *harness) {
		for n := 1; ; n++ {
			plan := FailCall(n)
			if err := runLifecycle(t, h, Faulty(h.p, plan)); plan.Fired() != (err != nil) {
				t.Errorf("call %d of %v failed: %v; the scenario said %v", n, plan.Calls(), plan.Fired(), err)
			} else if err != nil && atoll.KindOf(err) != atoll.ErrUnavailable {
				t.Errorf("call %d failed with %v, want its kind kept", n, err)
			}
			checkNoSandbox(t, h, h.p)
			if !plan.Fired() || t.Failed() {
				return
			}
		}
	}},
}

// runLifecycle creates a sandbox, uses it and removes it. It stops at the first error, and tries a
// failed removal again.
func runLifecycle(t *testing.T, h *harness, p atoll.Provider) (err error) {
	ctx := h.newContext(t)
	if err := atoll.Prepare(ctx, p, h.completeSpec(atoll.Spec{}), nil); err != nil {
		return err
	}
	sb, err := p.Create(ctx, h.completeSpec(atoll.Spec{Name: "whole"}))
	if err != nil {
		return err
	}
	defer func() {
		first := sb.Remove(ctx, atoll.RemoveVolumes())
		if first != nil {
			if again := sb.Remove(ctx, atoll.RemoveVolumes()); again != nil {
				t.Errorf("Remove, tried again: %v", again)
			}
		}
		err = errors.Join(err, first)
	}()
	if caps := p.Info().Caps; caps.Files {
		if err := atoll.WriteFile(ctx, sb, "f", []byte("x"), 0); err != nil {
			return err
		}
		if _, err := atoll.ReadFile(ctx, sb, "f"); err != nil {
			return err
		}
	}
	if _, err := atoll.Output(ctx, sb, programCommand("echo", "hello")); err != nil {
		return err
	}
	found, err := atoll.Resolve(ctx, p, "", "whole")
	if err != nil {
		return err
	}
	proc, err := found.Exec(ctx, scriptCommand("ready"))
	if err != nil {
		return err
	}
	if err := proc.Signal(ctx, atoll.SIGTERM); err != nil {
		return err
	}
	if err := proc.Attach(ctx, &atoll.Attachment{Stdout: io.Discard}); err != nil {
		return err
	}
	return found.Stop(ctx, 0)
}
