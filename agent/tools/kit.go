package tools

import (
	"context"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// Limits returns the limits of calls.
func (k *Kit) Limits() frontmatter.Limits { return k.limits }

// Offers reports whether the kit has a tool with that name.
func (k *Kit) Offers(name string) bool { return slices.Contains(k.toolNames(), name) }

// OpenWorld reports whether a tool may reach beyond the sandbox: it runs commands, and
// they have a network.
func (k *Kit) OpenWorld(t *Tool) bool {
	spec, err := k.sandboxSpec("")
	runs := t.Name == "sandbox_exec" || t.Name == "sandbox_process_write" || t.Name == runName
	return err == nil && runs && spec.Network.Mode != "" && spec.Network.Mode != atoll.NetworkNone
}

// projectOf returns the project of the caller's sandboxes: the kit's, or the caller's
// own if it may not use that.
func (k *Kit) projectOf(ctx context.Context) string {
	return auth.AccountFrom(ctx).ProjectOr(k.opts.Project)
}

// Scope returns the scope of the caller's session. Kinds: ErrInvalid.
func (k *Kit) Scope(caller Caller) (session.Scope, error) {
	return (&call{k: k, caller: caller}).callScope()
}

// Running reports whether the caller's session is open and its sandbox runs. It opens
// nothing.
func (k *Kit) Running(ctx context.Context, caller Caller) (bool, error) {
	scope, err := k.Scope(caller)
	if err != nil {
		return false, err
	}
	if d := k.findState(k.projectOf(ctx), scope.Key()); d != nil {
		if ok, err := k.isRunning(ctx, d.sandbox.ID()); ok || err != nil {
			return ok, err
		}
	}
	all, err := session.List(ctx, k.provider, k.projectOf(ctx))
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(all, func(s session.Session) bool { return s.Key == scope.Key() && s.State == session.StateOpen })
	if i < 0 {
		return false, nil
	}
	return k.isRunning(ctx, all[i].Sandbox)
}

// isRunning reports whether a sandbox exists and runs.
func (k *Kit) isRunning(ctx context.Context, id string) (bool, error) {
	sb, err := k.provider.Get(ctx, id)
	var st atoll.Status
	if err == nil {
		st, err = sb.Status(ctx)
	}
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return false, nil
	}
	return err == nil && st.State == atoll.StateRunning, err
}

// End closes the session of a scope after its run has ended; see session.EndScope.
func (k *Kit) End(ctx context.Context, scope session.Scope) error {
	project := k.projectOf(ctx)
	closed, err := session.EndScope(ctx, k.provider, project, scope)
	for _, key := range closed {
		if d := k.findState(project, key); d != nil {
			k.releaseState(d)
		}
	}
	return err
}
