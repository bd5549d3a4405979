package registry

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// wrapSandbox returns sb with this layer around it.
func (l *Provider) wrapSandbox(sb atoll.Sandbox) atoll.Sandbox {
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, l}
}

// A sandbox hides the secret in the environment, and lets commands wait for a
// rebuild.
type sandbox struct {
	atoll.SandboxLayer
	l *Provider
}

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.SandboxLayer.Status(ctx)
	st.Spec.Env = withoutSecretEnv(st.Spec.Env)
	return st, err
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

// Snapshot implements atoll.Snapshotter.
func (s *sandbox) Snapshot(ctx context.Context) (atoll.Snapshot, error) {
	snap, err := atoll.TakeSnapshot(ctx, s.Sandbox)
	snap.Spec.Env = withoutSecretEnv(snap.Spec.Env)
	return snap, err
}

// ignoreNotFound returns nil instead of an ErrNotFound.
func ignoreNotFound(err error) error {
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	return err
}

var (
	_ atoll.Sandbox     = (*sandbox)(nil)
	_ atoll.Snapshotter = (*sandbox)(nil)
)
