package jobs

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Sandboxes is the Backend whose containers are sandboxes of a provider, which stays
// the caller's. log is told of sandboxes that cannot be removed; nil discards.
func Sandboxes(p atoll.Provider, log *slog.Logger) Backend {
	return sandboxes{p, cmp.Or(log, slog.New(slog.DiscardHandler))}
}

type sandboxes struct {
	provider atoll.Provider
	log      *slog.Logger
}

// disposeTime is how long it may take to remove a sandbox.
const disposeTime = time.Minute

// Run implements Backend.
func (s sandboxes) Run(ctx context.Context, job *Job) (*Result, error) {
	sb, err := s.provider.Create(ctx, job.Spec.Clone())
	if err != nil {
		return nil, err
	}
	defer s.dispose(ctx, sb)
	return In(ctx, sb, job)
}

func (s sandboxes) dispose(ctx context.Context, sb atoll.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), disposeTime)
	defer cancel()
	if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
		s.log.Warn("sandbox of one program: remove", "sandbox", sb.ID(), "err", err) // its time to live does it
	}
}

// Close implements Backend.
func (s sandboxes) Close() error { return nil }
