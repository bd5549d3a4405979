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

// sweep removes the sandboxes whose time is over, and what is left of those that were
// never finished, and returns when to look again. Any provider of the same engine does it.
func (p *Provider) sweep(ctx context.Context) (due time.Time) {
	due, err := p.sweepAll(ctx)
	if err != nil && ctx.Err() == nil && atoll.KindOf(err) != atoll.ErrUnavailable { // where no engine is, nothing is due
		p.log.Warn("sweep", "err", err)
	}
	return due
}

func (p *Provider) sweepAll(ctx context.Context) (due time.Time, err error) {
	list, err := p.records(ctx, "list", atoll.Filter{})
	if err != nil {
		return due, err
	}
	for _, r := range list {
		if r.ends() && (r.State == atoll.StateRunning || r.State == atoll.StatePaused) {
			p.await(ctx, r.ID)
		}
		t := r.due()
		if t.IsZero() || time.Now().Before(t) {
			due = sweeper.Sooner(due, t)
			continue
		}
		if err := p.sweepAway(ctx, r.ID); err != nil {
			p.log.Warn("sweep", "sandbox", r.ID, "err", err)
			due = sweeper.Sooner(due, time.Now().Add(time.Second))
		}
	}
	err = p.strays(ctx, list)
	if now := time.Now(); p.isTime(now) {
		err = errors.Join(err, p.installers(ctx, now.Add(-installTime)))
	}
	return due, err
}

// strays removes the marks of sandboxes that are no more.
func (p *Provider) strays(ctx context.Context, list []*record) error {
	all, err := p.marks(ctx, "")
	if err != nil {
		return err
	}
	for _, m := range all {
		if slices.ContainsFunc(list, func(r *record) bool { return r.ID == m.sandbox }) {
			continue
		}
		lock, err := p.lock(ctx, "remove", m.sandbox)
		if err != nil {
			return err
		}
		_, err = p.inspect(ctx, "remove", m.sandbox)
		if atoll.KindOf(err) == atoll.ErrNotFound { // nor was it made meanwhile
			err = p.removeMarks(ctx, []mark{m})
		}
		lock.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// installTime is how long the volume of the guest may take to fill, on the busiest of
// machines.
const installTime = 10 * time.Minute

// installers removes the containers that were to fill the volume of the guest, of programs
// that were killed meanwhile: those that were made before.
func (p *Provider) installers(ctx context.Context, before time.Time) error {
	which := client.Filters{}
	for label, value := range p.names.installs() {
		which = which.Add("label", label+"="+value)
	}
	found, err := p.engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: which})
	if err != nil {
		return err
	}
	for _, c := range found.Items {
		if time.Unix(c.Created, 0).Before(before) {
			p.drop(c.ID)
		}
	}
	return nil
}

// isTime reports, now and then, that it is time to look for such containers.
func (p *Provider) isTime(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Before(p.looked.Add(installTime)) {
		return false
	}
	p.looked = now
	return true
}

// await rouses the sweeper when the sandbox has ended.
func (p *Provider) await(ctx context.Context, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.awaited[id] {
		return
	}
	p.awaited[id] = true
	p.waits.Go(func() {
		ended := p.engine.ContainerWait(ctx, p.names.container(id), client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		var err error
		select {
		case <-ended.Result:
		case err = <-ended.Error:
		}
		p.mu.Lock()
		delete(p.awaited, id)
		p.mu.Unlock()
		if err == nil { // else it is waited for again with the next sweep
			p.sweeper.Rouse()
		}
	})
}

// due is when the sandbox's time is over; zero means that it is not known.
func (r *record) due() time.Time { return sweeper.Due(&r.Status, r.idle) }

// ends reports whether the sandbox goes when it has come to its end.
func (r *record) ends() bool {
	return r.Spec.AutoRemove || r.Spec.IdleRemove && r.State == atoll.StateRunning
}

// sweepAway removes a sandbox with its data volume, if it is still due: it may have
// been started again.
func (p *Provider) sweepAway(ctx context.Context, id string) error {
	sb := &sandbox{p, id}
	lock, err := p.lock(ctx, "remove", id)
	if err != nil {
		return err
	}
	defer lock.Release()
	r, err := p.inspect(ctx, "remove", id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if t := r.due(); t.IsZero() || time.Now().Before(t) {
		return nil
	}
	return sb.remove(ctx, atoll.RemoveOptions{Volumes: true})
}

// Ping returns nil when an engine answers. Kinds: ErrUnavailable.
func (p *Provider) Ping(ctx context.Context) error {
	return p.failed(ctx, "ping", "", p.connected(ctx))
}

// connected reports whether an engine answers.
func (p *Provider) connected(ctx context.Context) error {
	_, err := p.engine.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	return err
}
