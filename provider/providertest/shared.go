package providertest

import (
	"context"
	"fmt"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// A sharedHarness holds the provider and the sandbox that the promises of a group share.
type sharedHarness struct {
	h  *harness
	sb atoll.Sandbox // nil until a promise needs it
}

// lendHarness returns a harness for one subtest, with the shared provider.
func (c *sharedHarness) lendHarness(t *testing.T) *harness {
	h := &harness{cfg: c.h.cfg, census: c.h.census, p: c.h.p, sharedFrom: c}
	t.Cleanup(func() {
		if h.borrowed {
			c.tidySandbox(t)
		}
		h.closeAndCheck(t)
	})
	return h
}

// sandboxID returns the id of the shared sandbox, or "".
func (c *sharedHarness) sandboxID() string {
	if c == nil || c.sb == nil {
		return ""
	}
	return c.sb.ID()
}

// lendSandbox returns the shared sandbox, and creates it at the first call.
func (c *sharedHarness) lendSandbox(t *testing.T, h *harness) atoll.Sandbox {
	t.Helper()
	if c.sb == nil {
		c.sb = c.h.createSandbox(t, atoll.Spec{})
	}
	h.borrowed = true
	return c.sb
}

// tidySandbox cleans the shared sandbox for the next subtest. It removes a sandbox that it cannot
// clean, and the next subtest creates another one.
func (c *sharedHarness) tidySandbox(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), c.h.longLimit())
	defer cancel()
	if err := cleanSandbox(ctx, c.sb); err != nil {
		t.Logf("the shared sandbox is replaced: %v", err)
		c.h.removeSandbox(ctx, t, c.sb.ID())
		c.sb = nil
	}
}

// cleanSandbox ends all processes in a sandbox and empties its work directory.
func cleanSandbox(ctx context.Context, sb atoll.Sandbox) error {
	st, err := sb.Status(ctx)
	if err != nil {
		return err
	}
	if st.State != atoll.StateRunning {
		return fmt.Errorf("the sandbox is %s", st.State)
	}
	all, err := atoll.Processes(ctx, sb)
	if err != nil && atoll.KindOf(err) != atoll.ErrUnsupported {
		return err
	}
	for _, ps := range all {
		if ps.Exit != nil {
			continue
		}
		p, err := sb.Process(ctx, ps.ID)
		if err != nil {
			return err
		}
		if err := p.Signal(ctx, atoll.SIGKILL); err != nil && atoll.KindOf(err) != atoll.ErrStopped {
			return err
		}
		if _, err := p.Wait(ctx); err != nil {
			return err
		}
	}
	return atoll.Run(ctx, sb, programCommand("find", ".", "-mindepth", "1", "-maxdepth", "1", "-exec", "rm", "-rf", "{}", "+"))
}
