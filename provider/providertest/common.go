package providertest

import (
	"context"
	"fmt"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// A common is what the promises of a group share: a provider, and one sandbox.
type common struct {
	h  *harness      // the group's
	sb atoll.Sandbox // nil as long as nobody needs it
}

// lend returns the harness of one subtest.
func (c *common) lend(t *testing.T) *harness {
	h := &harness{cfg: c.h.cfg, kin: c.h.kin, p: c.h.p, common: c}
	t.Cleanup(func() {
		if h.lent {
			c.tidy(t)
		}
		h.close(t)
	})
	return h
}

// id is that of the common sandbox, "" if there is none.
func (c *common) id() string {
	if c == nil || c.sb == nil {
		return ""
	}
	return c.sb.ID()
}

// sandbox lends the common sandbox.
func (c *common) sandbox(t *testing.T, h *harness) atoll.Sandbox {
	t.Helper()
	if c.sb == nil {
		c.sb = c.h.create(t, atoll.Spec{})
	}
	h.lent = true
	return c.sb
}

// tidy makes the common sandbox ready for the next subtest. One that it cannot is removed,
// and the next has another.
func (c *common) tidy(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), c.h.long())
	defer cancel()
	if err := tidy(ctx, c.sb); err != nil {
		t.Logf("the sandbox is not used again: %v", err)
		c.h.remove(ctx, t, c.sb.ID())
		c.sb = nil
	}
}

// tidy ends all processes in a sandbox and removes what is in its work directory.
func tidy(ctx context.Context, sb atoll.Sandbox) error {
	st, err := sb.Status(ctx)
	if err != nil {
		return err
	}
	if st.State != atoll.StateRunning {
		return fmt.Errorf("it is %s", st.State)
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
	return atoll.Run(ctx, sb, program("find", ".", "-mindepth", "1", "-maxdepth", "1", "-exec", "rm", "-rf", "{}", "+"))
}
