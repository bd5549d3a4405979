package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/intercept"
	"github.com/seed46cd37a8/atoll/storage/store"
)

const (
	// refusedOp is the name in the log of a request that the network of a sandbox refused.
	refusedOp = "refused"
	// maxRefused is the maximum number of refusals that one command, Stop or Remove adds to the log.
	maxRefused = 16
	// refusalsTimeout limits the time that a call waits for the refusals.
	refusalsTimeout = 2 * time.Second
)

// recordWait records what the network refused, after a command that failed.
func (r *recorder) recordWait(ctx context.Context, c *intercept.Call, next intercept.Next) error {
	err := next(ctx)
	if exit, ok := c.Result.(atoll.Exit); ok && err == nil && !exit.Success() {
		r.recordRefusals(ctx, c.On)
	}
	return err
}

// recordRefusals records each different request that the network of the sandbox has refused since the
// previous call. It does nothing if the provider does not know that. Of a flood it records the latest,
// and the number of the others.
func (r *recorder) recordRefusals(ctx context.Context, sb atoll.Sandbox) {
	ctx, cancel := context.WithTimeout(ctx, refusalsTimeout)
	defer cancel()
	all, err := atoll.RefusalsOf(ctx, sb)
	if err != nil || len(all.List) == 0 {
		return
	}
	seen := r.markRefusals(sb.ID(), all.Time)
	var list []atoll.Refusal
	for _, one := range all.List {
		if one.First.After(seen) {
			list = append(list, one)
		}
	}
	if len(list) == 0 {
		return
	}
	e := store.AuditEvent{Op: refusedOp, Project: r.findProject(ctx, sb), Sandbox: sb.ID(), Kind: atoll.ErrDenied}
	if more := len(list) - maxRefused; more > 0 {
		list = list[more:]
		e.Target, e.Message = fmt.Sprintf("%d others", more), "too many to record"
		r.log.Note(ctx, e, false)
	}
	for _, one := range list {
		e.Target, e.Message = one.Target(), one.Reason
		r.log.Note(ctx, e, false)
	}
}

// markRefusals records that the log has the refusals of the sandbox up to now, and returns the time up
// to which it had them before.
func (r *recorder) markRefusals(id string, now time.Time) (before time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, known := r.refusals[id]
	if !known {
		before = r.since // an earlier server has recorded the others
	}
	if len(r.refusals) >= maxProjects {
		r.since = now
		clear(r.refusals)
	}
	if now.After(before) {
		r.refusals[id] = now
	}
	return before
}
