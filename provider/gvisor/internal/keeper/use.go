//go:build linux

package keeper

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/idle"
)

// watchIdle stops the sandbox when nobody uses it any more.
func (b *box) watchIdle() {
	limit := time.Duration(b.job.Spec.IdleStop)
	if limit <= 0 {
		return
	}
	used := time.Now()
	for {
		select {
		case <-b.done:
			return
		case <-time.After(idle.Step(limit)):
		}
		if t := b.lastUsed(); t.After(used) {
			used = t
		}
		if time.Since(used) < limit {
			continue
		}
		reason := "nobody used it for " + b.job.Spec.IdleStop.String()
		if b.job.Spec.IdleRemove {
			b.endAndRemove(reason)
			return
		}
		if won, _ := b.waitToEnd(context.Background()); !won {
			return
		}
		if err := b.stop(atoll.DefaultStopGrace, reason); err != nil {
			b.log.Error("idle stop", "err", err)
			used = time.Now() // and once more when as much time has passed
		}
	}
}

// lastUsed is when the sandbox was last used; now when it is, or it cannot be
// known.
func (b *box) lastUsed() time.Time {
	now := time.Now()
	st, _ := b.Status(context.Background()) // never fails
	if st.State != atoll.StateRunning || b.table.Running() > 0 {
		return now
	}
	if n, err := b.sentry.count(); err != nil || n > b.files.guests()+1 { // the idle init is always there
		return now
	}
	latest := b.use.Latest()
	if t, err := b.dir.Used(b.ID()); err == nil && t.After(latest) { // by a provider, without asking us
		latest = t
	}
	for _, p := range b.table.List() {
		if p.Exit == nil {
			return now
		}
		if t := p.Started.Add(time.Duration(p.Exit.Duration)); t.After(latest) {
			latest = t
		}
	}
	return latest
}
