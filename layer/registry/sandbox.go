package registry

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// wrapSandbox returns sb with this layer around it.
func (l *Provider) wrapSandbox(sb atoll.Sandbox) atoll.Sandbox {
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, l}
}

// A sandbox lets commands wait for a rebuild.
type sandbox struct {
	atoll.SandboxLayer
	l *Provider
}

// Exec implements atoll.Sandbox. It waits while the sandbox is being rebuilt.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	end, waited, err := s.l.locks.beginCommand(ctx, s.ID())
	if err != nil {
		return nil, err
	}
	defer end()
	if !waited {
		p, err := s.Sandbox.Exec(ctx, cmd)
		if atoll.KindOf(err) != atoll.ErrNotFound {
			return p, err
		}
	}
	// A rebuild may have replaced the sandbox of this handle.
	sb, err := s.l.ProviderLayer.Get(ctx, s.ID())
	if err != nil {
		return nil, err
	}
	return sb.Exec(ctx, cmd)
}

// ignoreNotFound returns nil instead of an ErrNotFound.
func ignoreNotFound(err error) error {
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	return err
}

var _ atoll.Sandbox = (*sandbox)(nil)
