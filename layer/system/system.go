// Package system is the layer that keeps Spec.System between Atoll's layers and providers. It refuses
// specs of callers that set it, and removes it from everything that callers get.
//
//	p = system.New(p)
//
// It is the outermost layer.
package system

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/intercept"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// New returns a layer around p, which Close closes.
func New(p atoll.Provider) atoll.Provider {
	return intercept.New(p, intercept.Sandboxes, func(ctx context.Context, c *intercept.Call, next intercept.Next) error {
		if spec := findSpec(c.Arg); spec != nil && !spec.System.IsZero() {
			return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "system: only Atoll's own layers set it; leave it out")
		}
		c.Item = hideSystem
		err := next(ctx)
		c.Result = hideSystem(c.Result)
		return err
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
