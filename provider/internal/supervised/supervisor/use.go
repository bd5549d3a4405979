package supervisor

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/idletracker"
)

// watchIdle stops the sandbox when nobody uses it any more.
func (b *Box) watchIdle() {
	limit := time.Duration(b.Job.Spec.IdleStop)
	if limit <= 0 {
		return
	}
	used := time.Now()
	for {
		select {
		case <-b.done:
			return
		case <-time.After(idletracker.Step(limit)):
		}
		if t := b.lastUsed(); t.After(used) {
			used = t
		}
		if time.Since(used) < limit {
			continue
		}
		reason := "nobody used it for " + b.Job.Spec.IdleStop.String()
		if b.Job.Spec.IdleRemove {
			b.endAndRemove(reason)
			return
		}
		if won, _ := b.waitToEnd(context.Background()); !won {
			return
		}
		if err := b.stop(atoll.DefaultStopGrace, reason); err != nil {
			b.Log.Error("idle stop", "err", err)
			used = time.Now() // and once more when as much time has passed
		}
	}
}

// patience is how long an engine may take to answer what it has in memory.
const patience = 10 * time.Second

// lastUsed is when the sandbox was last used; now when it is, or it cannot be
// known.
func (b *Box) lastUsed() time.Time {
	now := time.Now()
	st, _ := b.Status(context.Background()) // never fails
	if st.State != atoll.StateRunning {
		return now
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n, err := b.engine.Running(ctx)
	if err != nil || n > 0 {
		return now
	}
	list, err := b.engine.Processes(ctx)
	if err != nil {
		return now
	}
	var latest time.Time
	if !b.Job.Unattended {
		latest = b.use.Latest()
	}
	if t, err := b.dir.Used(b.ID()); err == nil && t.After(latest) { // by a provider, without asking us
		latest = t
	}
	for _, p := range list {
		if p.Exit == nil {
			return now
		}
		if t := p.Started.Add(time.Duration(p.Exit.Duration)); t.After(latest) {
			latest = t
		}
	}
	return latest
}
