//go:build linux

package keeper

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A use tells when a sandbox was last used from outside. The zero use never
// was.
type use struct {
	mu    sync.Mutex
	calls int // in progress
	last  time.Time
}

// counts returns a handler that does what next does, and counts as use.
func (u *use) counts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.add(1)
		defer u.add(-1)
		next.ServeHTTP(w, r)
	})
}

func (u *use) add(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls += n
	u.last = time.Now()
}

// latest is when the last call ended: now while there is one.
func (u *use) latest() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls > 0 {
		return time.Now()
	}
	return u.last
}

// idleLooks is how often, within Spec.IdleStop, it is looked whether something
// runs that nobody started through us, such as a daemon; at least once a
// minute.
const idleLooks = 10

// watchIdle stops the sandbox when nobody uses it any more.
func (b *box) watchIdle() {
	limit := time.Duration(b.job.Spec.IdleStop)
	if limit <= 0 {
		return
	}
	step := min(limit/idleLooks, time.Minute)
	used := time.Now()
	for {
		select {
		case <-b.done:
			return
		case <-time.After(step):
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
	latest := b.use.latest()
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
