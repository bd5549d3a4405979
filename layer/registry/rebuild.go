package registry

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// rebuildTimeout limits the removal and creation of a sandbox in a rebuild.
const rebuildTimeout = 5 * time.Minute

// A busyError is the reason for not rebuilding a sandbox now.
type busyError string

func (e busyError) Error() string { return string(e) }

// rebuildSandbox removes a sandbox and creates it again, with its ID, name, secret
// and data volume, and the current image. It does not start a sandbox that was
// stopped. If commands run in the sandbox, it returns a busyError, unless force is
// set. The caller holds the sandbox's lock.
func (l *Provider) rebuildSandbox(ctx context.Context, r *store.Record, st atoll.Status, force bool) error {
	if _, _, err := l.checkRebuild(ctx, r.ID, st, force); err != nil {
		return err
	}
	spec := r.Spec.Clone()
	if err := atoll.Prepare(ctx, l.ProviderLayer, spec, nil); err != nil { // pulls the image while the old sandbox is in use
		return err
	}
	unblock, ok := l.locks.blockCommands(r.ID, force)
	if !ok {
		return busyError("a command is starting in the sandbox")
	}
	defer unblock()
	sb, state, err := l.checkRebuild(ctx, r.ID, st, force)
	if err != nil {
		return err
	}
	spec.NoStart = state == atoll.StateCreated || state == atoll.StateStopped
	if err := l.takeRecord(ctx, r, func(r *store.Record) { r.State, r.Spec = store.Rebuilding, *spec }); err != nil {
		return err
	}
	l.opts.onStep("rebuilding")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rebuildTimeout)
	defer cancel()
	if err := sb.Remove(ctx); err != nil {
		return err
	}
	l.opts.onStep("half rebuilt")
	return l.recreateSandbox(ctx, r)
}

// checkRebuild returns a sandbox that can be rebuilt, and its state. The error is a
// busyError if commands run in it, unless force is set, and ErrConflict if it is no
// longer the sandbox of st.
func (l *Provider) checkRebuild(ctx context.Context, id string, st atoll.Status, force bool) (atoll.Sandbox, atoll.State, error) {
	sb, err := l.ProviderLayer.Get(ctx, id)
	if err != nil {
		return nil, "", err
	}
	now, err := sb.Status(ctx)
	switch {
	case err != nil:
		return nil, "", err
	case !now.Created.Equal(st.Created): // another program has just rebuilt it
		return nil, "", atoll.E("rebuild", id, atoll.ErrConflict, errHeldElsewhere)
	case !force:
		err = checkIdle(ctx, sb, now.State)
	}
	return sb, now.State, err
}

// checkIdle returns a busyError if a command runs in the sandbox, or if it cannot
// tell.
func checkIdle(ctx context.Context, sb atoll.Sandbox, state atoll.State) error {
	switch state {
	case atoll.StateRunning:
	case atoll.StatePaused:
		return busyError("sandbox is paused")
	default:
		return nil
	}
	all, err := atoll.Processes(ctx, sb)
	if err != nil {
		return busyError(fmt.Sprintf("cannot list the commands in the sandbox: %v", err))
	}
	for _, p := range all {
		if p.Exit == nil {
			return busyError("commands are running in the sandbox; wait for them, or use force")
		}
	}
	return nil
}

// isOutdated reports whether a sandbox was created from another image than the one
// its Spec names now.
func isOutdated(spec *atoll.Spec, image, digest string) bool {
	if spec.Snapshot != "" || digest == "" || !strings.Contains(image, "sha256:") {
		return false
	}
	return !strings.HasSuffix(image, digest)
}
