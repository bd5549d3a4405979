package jobs

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Sandboxes returns a Backend whose containers are sandboxes of a provider, which the
// caller keeps. log receives errors of sandboxes that cannot be removed; nil discards
// them.
func Sandboxes(p atoll.Provider, log *slog.Logger) Backend {
	return sandboxes{p, cmp.Or(log, slog.New(slog.DiscardHandler))}
}

type sandboxes struct {
	provider atoll.Provider
	log      *slog.Logger
}

// disposeTime bounds the removal of a sandbox.
const disposeTime = time.Minute

// Run implements Backend.
func (s sandboxes) Run(ctx context.Context, job *Job) (*Result, error) {
	sb, err := s.provider.Create(ctx, job.Spec.Clone())
	if err != nil {
		return nil, err
	}
	defer s.removeSandbox(ctx, sb)
	return In(ctx, sb, job)
}

func (s sandboxes) removeSandbox(ctx context.Context, sb atoll.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), disposeTime)
	defer cancel()
	if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
		s.log.Warn("sandbox of one program: remove", "sandbox", sb.ID(), "err", err) // its TTL removes it
	}
}

// Close implements Backend.
func (s sandboxes) Close() error { return nil }
