package ledger

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/store"
)

// rebuildTime is how long a sandbox may take to be made again, once it has been
// removed for that.
const rebuildTime = 5 * time.Minute

// busyError says why a sandbox is not rebuilt now.
type busyError string

func (e busyError) Error() string { return string(e) }

// rebuild makes a sandbox, whose gate is held, anew: with its id, name, secret
// and data volume, and what its image's name stands for now. One that did not
// run is not started. Its error is a busyError when commands run in it, which
// only force ends.
func (l *Provider) rebuild(ctx context.Context, r *store.Record, st atoll.Status, force bool) error {
	open, ok := l.gate.close(r.ID, force)
	if !ok {
		return busyError("a command is being started in it")
	}
	defer open()
	sb, err := l.ProviderLayer.Get(ctx, r.ID)
	if err != nil {
		return err
	}
	now, err := sb.Status(ctx)
	if err != nil {
		return err
	}
	if !now.Created.Equal(st.Created) { // another program has just rebuilt it
		return atoll.E("rebuild", r.ID, atoll.ErrConflict, errElsewhere)
	}
	st.State = now.State
	if !force {
		if err := idle(ctx, sb, st.State); err != nil {
			return err
		}
	}
	spec := r.Spec.Clone()
	spec.NoStart = st.State == atoll.StateCreated || st.State == atoll.StateStopped
	if err := atoll.Prepare(ctx, l.ProviderLayer, spec, nil); err != nil { // while it is still there
		return err
	}
	if err := l.take(ctx, r, func(r *store.Record) { r.State, r.Spec = store.Rebuilding, *spec }); err != nil {
		return err
	}
	l.opts.step("rebuilding")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rebuildTime)
	defer cancel()
	if err := sb.Remove(ctx); err != nil {
		return err
	}
	l.opts.step("half rebuilt")
	return l.remake(ctx, r)
}

// idle is a busyError if a command runs in the sandbox, or that cannot be known.
func idle(ctx context.Context, sb atoll.Sandbox, state atoll.State) error {
	switch state {
	case atoll.StateRunning:
	case atoll.StatePaused:
		return busyError("it is paused")
	default:
		return nil
	}
	all, err := atoll.Processes(ctx, sb)
	if err != nil {
		return busyError(fmt.Sprintf("whether commands run in it is not known: %v", err))
	}
	for _, p := range all {
		if p.Exit == nil {
			return busyError("commands run in it: rebuild it when they have ended, or use force")
		}
	}
	return nil
}

// outdated reports whether a sandbox was made from another image than its Spec
// names now.
func outdated(spec *atoll.Spec, image, digest string) bool {
	if spec.Snapshot != "" || digest == "" || !strings.Contains(image, "sha256:") {
		return false
	}
	return !strings.HasSuffix(image, digest)
}
