// Package system is the layer that keeps Spec.System between Atoll's layers and providers. It refuses
// specs of callers that set it, and removes it from everything that callers get. It also removes the
// directories of the host from errors and reasons for accounts that are restricted to projects.
//
//	p = system.New(p, system.Options{HostDirs: []string{stateDir}})
//
// It is the outermost layer.
package system

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/intercept"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// Options configure the layer.
type Options struct {
	// HostDirs are directories of the host, such as the state directory, that accounts with auth.RoleProject must not
	// learn. Errors and reasons for them have "[host]" instead.
	HostDirs []string
}

// New returns a layer around p, which Close closes.
func New(p atoll.Provider, opts Options) atoll.Provider {
	paths := newPathHider(opts.HostDirs)
	depth := intercept.Sandboxes
	if len(paths.dirs) > 0 {
		depth = intercept.All // calls of processes and files have errors, too
	}
	return intercept.New(p, depth, func(ctx context.Context, c *intercept.Call, next intercept.Next) error {
		if spec := findSpec(c.Arg); spec != nil && !spec.System.IsZero() {
			return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "system: only Atoll's own layers set it; leave it out")
		}
		if !paths.hidesFrom(ctx) {
			c.Item = hideSystem
			err := next(ctx)
			c.Result = hideSystem(c.Result)
			return err
		}
		c.Item = func(v any) any { return paths.hideValue(hideSystem(v)) }
		err := next(ctx)
		c.Result = paths.hideValue(hideSystem(c.Result))
		return paths.hideError(err)
	})
}

// findSpec returns the spec of a sandbox in an argument; nil if there is none.
func findSpec(arg any) *atoll.Spec {
	switch arg := arg.(type) {
	case *atoll.Spec:
		return arg
	case *session.Spec:
		return &arg.Sandbox
	}
	return nil
}

// hideSystem returns v without the System of the specs in it.
func hideSystem(v any) any {
	switch v := v.(type) {
	case atoll.Status:
		v.Spec.System = atoll.System{}
		return v
	case []atoll.Status:
		for i := range v {
			v[i].Spec.System = atoll.System{}
		}
	case atoll.Event:
		v.Status.Spec.System = atoll.System{}
		return v
	case atoll.Snapshot:
		v.Spec.System = atoll.System{}
		return v
	case []atoll.Snapshot:
		for i := range v {
			v[i].Spec.System = atoll.System{}
		}
	}
	return v
}
