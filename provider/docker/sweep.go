package docker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/sweeper"
)

// sweepSandboxes removes expired sandboxes and the remains of interrupted work, and returns the
// time of the next sweep. Every provider of the engine sweeps.
func (p *Provider) sweepSandboxes(ctx context.Context) (due time.Time) {
	due, err := p.sweepOnce(ctx)
	if err != nil && ctx.Err() == nil && atoll.KindOf(err) != atoll.ErrUnavailable { // without an engine, nothing is due
		p.log.Warn("sweep", "err", err)
	}
	return due
}

func (p *Provider) sweepOnce(ctx context.Context) (due time.Time, err error) {
	if err := p.Ping(ctx); err != nil { // a request in its place could go out with an API version that the engine refuses
		return due, err
	}
	list, err := p.listRecords(ctx, "list", atoll.Filter{})
	if err != nil {
		return due, err
	}
	for _, r := range list {
		if r.isRemovedAtEnd() && (r.State == atoll.StateRunning || r.State == atoll.StatePaused) {
			p.awaitEnd(ctx, r.ID)
		}
		t := r.dueTime()
		if t.IsZero() || time.Now().Before(t) {
			due = sweeper.Earlier(due, t)
			continue
		}
		if err := p.removeExpired(ctx, r.ID); err != nil {
			p.log.Warn("sweep", "sandbox", r.ID, "err", err)
			due = sweeper.Earlier(due, time.Now().Add(time.Second))
		}
	}
	err = p.removeStrayMarkers(ctx, list)
	if now := time.Now(); p.isInstallerSweepDue(now) {
		err = errors.Join(err, p.removeInstallers(ctx, now.Add(-installTimeout)))
	}
	return due, err
}

// removeStrayMarkers removes the markers of sandboxes that no longer exist. The list has those
// that do.
func (p *Provider) removeStrayMarkers(ctx context.Context, list []*record) error {
	all, err := p.listMarkers(ctx, "")
	if err != nil {
		return err
	}
	for _, m := range all {
		if slices.ContainsFunc(list, func(r *record) bool { return r.ID == m.sandbox }) {
			continue
		}
		lock, err := p.acquireLock(ctx, "remove", m.sandbox)
		if err != nil {
			return err
		}
		_, err = p.findRecord(ctx, "remove", m.sandbox)
		if atoll.KindOf(err) == atoll.ErrNotFound { // it was not created meanwhile
			err = p.removeMarkers(ctx, []marker{m})
		}
		lock.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// installTimeout bounds how long it takes to fill the guest's volume, even on a very busy
// machine.
const installTimeout = 10 * time.Minute

// removeInstallers removes containers that were created before that time to fill the guest's
// volume: the programs that made them were killed.
func (p *Provider) removeInstallers(ctx context.Context, before time.Time) error {
	which := client.Filters{}
	for label, value := range p.names.installerLabels() {
		which = which.Add("label", label+"="+value)
	}
	found, err := p.engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: which})
	if err != nil {
		return err
	}
	for _, c := range found.Items {
		if time.Unix(c.Created, 0).Before(before) {
			p.dropContainer(c.ID)
		}
	}
	return nil
}

// isInstallerSweepDue reports whether installTimeout has passed since the last time that it
// returned true.
func (p *Provider) isInstallerSweepDue(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Before(p.lastInstallerSweep.Add(installTimeout)) {
		return false
	}
	p.lastInstallerSweep = now
	return true
}

// awaitEnd starts a goroutine that wakes the sweeper when the sandbox has ended. It does nothing
// if one already waits.
func (p *Provider) awaitEnd(ctx context.Context, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.awaitedEnds[id] {
		return
	}
	p.awaitedEnds[id] = true
	p.endWaits.Go(func() {
		ended := p.engine.ContainerWait(ctx, p.names.sandboxName(id), client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		var err error
		select {
		case <-ended.Result:
		case err = <-ended.Error:
		}
		p.mu.Lock()
		delete(p.awaitedEnds, id)
		p.mu.Unlock()
		if err == nil { // otherwise, the next sweep waits for it again
			p.sweeper.Wake()
		}
	})
}

// dueTime returns the expiry of the sandbox; zero means that it is not known.
func (r *record) dueTime() time.Time { return sweeper.RemovalTime(&r.Status, r.idle) }

// isRemovedAtEnd reports whether the sandbox is removed when it ends.
func (r *record) isRemovedAtEnd() bool {
	return r.Spec.AutoRemove || r.Spec.IdleRemove && r.State == atoll.StateRunning
}

// removeExpired removes a sandbox with its data volume, if it still is expired: another program
// may have started or extended it.
func (p *Provider) removeExpired(ctx context.Context, id string) error {
	sb := &sandbox{p, id}
	lock, err := p.acquireLock(ctx, "remove", id)
	if err != nil {
		return err
	}
	defer lock.Release()
	r, err := p.findRecord(ctx, "remove", id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if t := r.dueTime(); t.IsZero() || time.Now().Before(t) {
		return nil
	}
	return p.runToEnd(ctx, func(ctx context.Context) error { // Close must not come between the container and its volume
		return sb.removeSandbox(ctx, atoll.RemoveOptions{Volumes: true})
	})
}

// Ping returns nil if the engine answers. Kinds: ErrUnavailable.
func (p *Provider) Ping(ctx context.Context) error {
	return p.wrapError(ctx, "ping", "", p.pingEngine(ctx))
}

// pingEngine returns nil if the engine answers.
func (p *Provider) pingEngine(ctx context.Context) error {
	_, err := p.engine.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	return err
}
