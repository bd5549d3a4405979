package tools

import (
	"context"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// Limits are those of its calls.
func (k *Kit) Limits() frontmatter.Limits { return k.limits }

// Offers reports whether there is a tool of that name.
func (k *Kit) Offers(name string) bool { return slices.Contains(k.names(), name) }

// OpenWorld reports whether what a tool does may reach beyond the sandbox: it runs
// commands, and they have a network.
func (k *Kit) OpenWorld(t *Tool) bool {
	spec, err := k.spec("")
	runs := t.Name == "sandbox_exec" || t.Name == "sandbox_process_write" || t.Name == runName
	return err == nil && runs && spec.Network.Mode != "" && spec.Network.Mode != atoll.NetworkNone
}

// project is that of the caller's sandboxes: the kit's, or if the caller may not use
// that one of its own.
func (k *Kit) project(ctx context.Context) string {
	return auth.AccountFrom(ctx).ProjectOr(k.opts.Project)
}

// Scope is that of the session which the caller's calls use. Kinds: ErrInvalid.
func (k *Kit) Scope(caller Caller) (session.Scope, error) {
	return (&call{k: k, caller: caller}).scope()
}

// Running reports whether the caller's session is open, and its sandbox runs. It
// opens nothing.
func (k *Kit) Running(ctx context.Context, caller Caller) (bool, error) {
	scope, err := k.Scope(caller)
	if err != nil {
		return false, err
	}
	if d := k.known(k.project(ctx), scope.Key()); d != nil {
		if ok, err := k.runs(ctx, d.sandbox.ID()); ok || err != nil {
			return ok, err
		}
	}
	all, err := session.List(ctx, k.provider, k.project(ctx))
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(all, func(s session.Session) bool { return s.Key == scope.Key() && s.State == session.StateOpen })
	if i < 0 {
		return false, nil
	}
	return k.runs(ctx, all[i].Sandbox)
}

// runs reports whether a sandbox is there, and runs.
func (k *Kit) runs(ctx context.Context, id string) (bool, error) {
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

// End closes the session of a scope whose run has ended, as session.EndScope does.
func (k *Kit) End(ctx context.Context, scope session.Scope) error {
	project := k.project(ctx)
	closed, err := session.EndScope(ctx, k.provider, project, scope)
	for _, key := range closed {
		if d := k.known(project, key); d != nil {
			k.leave(d)
		}
	}
	return err
}
