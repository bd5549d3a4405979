package registry

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
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
	if _, _, err := l.ready(ctx, r.ID, st, force); err != nil {
		return err
	}
	spec := r.Spec.Clone()
	if err := atoll.Prepare(ctx, l.ProviderLayer, spec, nil); err != nil { // while it is still there, and used
		return err
	}
	open, ok := l.gate.close(r.ID, force)
	if !ok {
		return busyError("a command is being started in it")
	}
	defer open()
	sb, state, err := l.ready(ctx, r.ID, st, force)
	if err != nil {
		return err
	}
	spec.NoStart = state == atoll.StateCreated || state == atoll.StateStopped
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

// ready returns a sandbox that can be rebuilt, and its state. It is a busyError if
// commands run in it, unless by force, and an ErrConflict if it is no longer the
// one that st is of.
func (l *Provider) ready(ctx context.Context, id string, st atoll.Status, force bool) (atoll.Sandbox, atoll.State, error) {
	sb, err := l.ProviderLayer.Get(ctx, id)
	if err != nil {
		return nil, "", err
	}
	now, err := sb.Status(ctx)
	switch {
	case err != nil:
		return nil, "", err
	case !now.Created.Equal(st.Created): // another program has just rebuilt it
		return nil, "", atoll.E("rebuild", id, atoll.ErrConflict, errElsewhere)
	case !force:
		err = idle(ctx, sb, now.State)
	}
	return sb, now.State, err
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
