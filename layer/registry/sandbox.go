package registry

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

func (l *Provider) wrap(sb atoll.Sandbox) atoll.Sandbox {
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, l}
}

type sandbox struct {
	atoll.SandboxLayer
	l *Provider
}

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.SandboxLayer.Status(ctx)
	st.Spec.Env = unmarked(st.Spec.Env)
	return st, err
}

// Exec implements atoll.Sandbox. While the sandbox is being rebuilt, it waits.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	leave, waited, err := s.l.gate.enter(ctx, s.ID())
	if err != nil {
		return nil, err
	}
	defer leave()
	if !waited {
		p, err := s.Sandbox.Exec(ctx, cmd)
		if atoll.KindOf(err) != atoll.ErrNotFound {
			return p, err
		}
	}
	// What this is a handle of may have been removed, now or before, and made again.
	sb, err := s.l.ProviderLayer.Get(ctx, s.ID())
	if err != nil {
		return nil, err
	}
	return sb.Exec(ctx, cmd)
}

// Snapshot implements atoll.Snapshotter.
func (s *sandbox) Snapshot(ctx context.Context) (atoll.Snapshot, error) {
	snap, err := atoll.TakeSnapshot(ctx, s.Sandbox)
	snap.Spec.Env = unmarked(snap.Spec.Env)
	return snap, err
}

func notFoundIsFine(err error) error {
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	return err
}

var (
	_ atoll.Sandbox     = (*sandbox)(nil)
	_ atoll.Snapshotter = (*sandbox)(nil)
)
