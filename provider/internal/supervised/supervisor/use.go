package supervisor

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/idletracker"
)

// watchIdle stops or removes the sandbox when it has been idle for too long.
func (s *Sandbox) watchIdle() {
	limit := time.Duration(s.Job.Spec.IdleStop)
	if limit <= 0 {
		return
	}
	used := time.Now()
	for {
		select {
		case <-s.done:
			return
		case <-time.After(idletracker.Step(limit)):
		}
		if t := s.lastUsed(); t.After(used) {
			used = t
		}
		if time.Since(used) < limit {
			continue
		}
		reason := "nobody used it for " + s.Job.Spec.IdleStop.String()
		if s.Job.Spec.IdleRemove {
			s.endAndRemove(reason)
			return
		}
		if won, _ := s.awaitBeginEnd(context.Background()); !won {
			return
		}
		if err := s.stopEngine(atoll.DefaultStopGrace, reason); err != nil {
			s.Log.Error("idle stop", "err", err)
			used = time.Now() // try again after the same time
		}
	}
}

// answerTimeout is the time within which an engine must answer a question that it answers
// from memory.
const answerTimeout = 10 * time.Second

// lastUsed returns the time at which the sandbox was last used; now while it is in use, or
// if that is not known.
func (s *Sandbox) lastUsed() time.Time {
	now := time.Now()
	st, _ := s.Status(context.Background()) // never fails
	if st.State != atoll.StateRunning {
		return now
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	n, err := s.engine.Running(ctx)
	if err != nil || n > 0 {
		return now
	}
	list, err := s.engine.Processes(ctx)
	if err != nil {
		return now
	}
	var latest time.Time
	if !s.Job.Unattended {
		latest = s.use.Latest()
	}
	if t, err := s.dir.Used(s.ID()); err == nil && t.After(latest) { // a provider used it without a call to the supervisor
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
