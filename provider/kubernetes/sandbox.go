package kubernetes

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// A sandbox is the handle of a sandbox.
type sandbox struct {
	*remote.Sandbox[objects]
	p *Provider
}

// Exec implements atoll.Sandbox.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	if s.p.opts.Profile == Restricted && cmd.User != "" && cmd.User != userAndGroup(s.p.opts.User) {
		return nil, atoll.Errorf("exec", s.ID(), atoll.ErrUnsupported, "user %q not available: all processes run as uid %d (set kubernetes.profile: %s)", cmd.User, s.p.opts.User, Baseline)
	}
	return s.Sandbox.Exec(ctx, cmd)
}

var (
	_ atoll.Sandbox       = (*sandbox)(nil)
	_ atoll.Dialer        = (*sandbox)(nil)
	_ atoll.Extender      = (*sandbox)(nil)
	_ atoll.Filer         = (*sandbox)(nil)
	_ atoll.ProcessLister = (*sandbox)(nil)
)
