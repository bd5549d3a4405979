package audit

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/intercept"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// recordedOps are the calls that the layer records, with their names in the log.
var recordedOps = map[string]string{
	"Provider.Create": "create", "Provider.OpenSession": "open session", "Provider.CloseSession": "close session",
	"Provider.RemoveProject": "remove project", "Provider.RemoveVolume": "remove volume", "Provider.AddWorkspace": "add workspace",
	"Provider.UpdateWorkspace": "update workspace", "Provider.RemoveWorkspace": "remove workspace", "Provider.RemoveImage": "remove image",
	"Provider.PruneImages": "prune images", "Provider.RemoveSnapshot": "remove snapshot", "Provider.Reconcile": "reconcile", "Provider.Secret": "secret",

	"Sandbox.Start": "start", "Sandbox.Stop": "stop", "Sandbox.Pause": "pause", "Sandbox.Resume": "resume", "Sandbox.Extend": "extend", "Sandbox.UpdateNetwork": "network",
	"Sandbox.Snapshot": "snapshot", "Sandbox.Remove": "remove", "Sandbox.Exec": "exec",
}

// recordsCall reports whether the layer records the calls on a provider with this name in the log.
func recordsCall(name string) bool {
	for op, recorded := range recordedOps {
		if recorded == name && strings.HasPrefix(op, "Provider.") {
			return true
		}
	}
	return false
}

// A recorder records the calls on a provider.
type recorder struct {
	log *Log

	mu       sync.Mutex
	projects map[string]string    // of sandboxes, by id
	refusals map[string]time.Time // time up to which the log has the refusals of a sandbox, by its id
	since    time.Time            // the refusals before are in the log
}

// New returns a layer around p, which Close closes. The caller closes the log.
func New(p atoll.Provider, log *Log) atoll.Provider {
	r := &recorder{log: log, projects: map[string]string{}, refusals: map[string]time.Time{}, since: time.Now()}
	return intercept.New(p, intercept.Processes, r.recordCall)
}

// recordCall is an intercept.Func that records a call once it has ended.
func (r *recorder) recordCall(ctx context.Context, c *intercept.Call, next intercept.Next) error {
	if c.Op == "Process.Wait" {
		return r.recordWait(ctx, c, next)
	}
	op, ok := recordedOps[c.Op]
	if !ok {
		return next(ctx)
	}
	e := store.AuditEvent{Op: op, Project: c.Project, Sandbox: c.Sandbox, Target: c.Name}
	if op == "remove" {
		e.Project = r.findProject(ctx, c.On) // unknown after the removal
	}
	if op == "remove" || op == "stop" {
		r.recordRefusals(ctx, c.On)
	}
	err := next(ctx)
	switch {
	case c.On != nil && op != "remove":
		e.Project = r.findProject(ctx, c.On)
	case op == "remove" && err == nil:
		r.forgetProject(c.Sandbox)
	case op == "create":
		e.Sandbox, e.Command = "", c.Arg.(*atoll.Spec).Cmd
		if sb, ok := c.Result.(atoll.Sandbox); ok && err == nil {
			r.forgetProject(sb.ID())
			e.Sandbox, e.Project = sb.ID(), r.findProject(ctx, sb)
		}
	case op == "open session" && err == nil:
		o := c.Result.(session.OpenResult)
		if o.Opening == session.OpeningFound { // the session existed
			return nil
		}
		e.Project, e.Sandbox, e.Target = o.Project, o.Sandbox, o.Key+" ("+string(o.Opening)+")"
	case op == "close session" && atoll.KindOf(err) == atoll.ErrNotExist: // most scopes end without a session
		return err
	case op == "reconcile" && auth.OriginFrom(ctx) == (auth.Origin{}): // the server's own, periodic reconciliation
		return err
	}
	if cmd, ok := c.Arg.(*atoll.Command); ok {
		e.Command = cmd.Args
	}
	// The log writes commands together with others soon after, and everything else at once.
	r.log.Note(ctx, withOutcome(e, err), op != "exec")
	return err
}

// maxProjects is the number of sandboxes whose project a recorder remembers.
const maxProjects = 10_000

// findProject returns the project of a sandbox. It calls Status once for each sandbox, and
// returns "" if that fails.
func (r *recorder) findProject(ctx context.Context, sb atoll.Sandbox) string {
	r.mu.Lock()
	project, ok := r.projects[sb.ID()]
	r.mu.Unlock()
	if ok {
		return project
	}
	st, err := sb.Status(ctx)
	if err != nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.projects) >= maxProjects {
		clear(r.projects)
	}
	r.projects[sb.ID()] = st.Spec.Project
	return st.Spec.Project
}

// forgetProject makes findProject call Status again.
func (r *recorder) forgetProject(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.projects, id)
	delete(r.refusals, id)
}
