// Package authz is a layer that restricts callers to their projects. An account with
// auth.RoleProject sees the sandboxes of its projects and everything that belongs to them. It
// cannot find out whether sandboxes of other projects exist.
//
//	p = authz.New(p, authz.Options{})
//	sb, err := p.Get(auth.WithAccount(ctx, account), id)
//
// The context names the caller: front-ends store the account of a token or a key in it. A context
// without an account belongs to the program itself, which may do everything.
//
// Objects of other projects are not found. The layer returns ErrDenied if a caller names another
// project, or asks for something that concerns all projects: images, new workspaces,
// reconciliation.
//
// A Ring manages the API keys of callers.
package authz

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// Options configure the layer. The zero value allows every spec.
type Options struct {
	// Refuse returns an error if accounts with auth.RoleProject may not create a sandbox from
	// spec, whose project is filled in. nil allows all specs.
	Refuse func(ctx context.Context, spec *atoll.Spec) error
	// Denied is called for each call that the layer denies or answers with "not found", with the
	// operation, the project and the object, as far as they are known.
	Denied func(ctx context.Context, op, project, id string)
}

type provider struct {
	atoll.ProviderLayer
	opts Options
}

// New returns a layer around p, which Close closes.
func New(p atoll.Provider, opts Options) atoll.Provider {
	if opts.Refuse == nil {
		opts.Refuse = func(context.Context, *atoll.Spec) error { return nil }
	}
	if opts.Denied == nil {
		opts.Denied = func(context.Context, string, string, string) {}
	}
	return &provider{atoll.ProviderLayer{Provider: p}, opts}
}

// Info implements atoll.Provider.
func (p *provider) Info() atoll.Info { return p.Provider.Info() }

// boundedAccount returns the account of the caller if it is restricted to projects.
func boundedAccount(ctx context.Context) (a auth.Account, ok bool) {
	a = auth.AccountFrom(ctx)
	return a, a.IsRestricted()
}

// denyCall reports the call to Options.Denied and returns an ErrDenied.
func (p *provider) denyCall(ctx context.Context, op, project, id, format string, args ...any) error {
	p.opts.Denied(ctx, op, project, id)
	return atoll.Errorf(op, id, atoll.ErrDenied, format, args...)
}

// hideObject reports the call to Options.Denied and returns the error for an object that does not
// exist.
func (p *provider) hideObject(ctx context.Context, op, project, id string, kind atoll.Kind) error {
	p.opts.Denied(ctx, op, project, id)
	return atoll.E(op, id, kind, nil)
}

// requireAdmin returns an error if the caller is restricted to projects.
func (p *provider) requireAdmin(ctx context.Context, op, id, why string) error {
	if _, ok := boundedAccount(ctx); !ok {
		return nil
	}
	return p.denyCall(ctx, op, "", id, "%s (requires role %s)", why, auth.RoleAdmin)
}

// checkProject returns the project that a call concerns: named, or the caller's default project
// if named is "". It returns an error if the caller may not use the project.
func (p *provider) checkProject(ctx context.Context, op, named, id string) (string, error) {
	a, ok := boundedAccount(ctx)
	if !ok {
		return named, nil
	}
	if named == "" {
		named = a.ProjectOr(atoll.DefaultProject)
	}
	if !a.CanUse(named) {
		return "", p.denyCall(ctx, op, named, id, "project %q not allowed; use one of %s", named, strings.Join(a.Projects, ", "))
	}
	return named, nil
}

// listScope returns the project to list, or "" for all, and a function that reports whether the
// caller may see an entry of a project.
func (p *provider) listScope(ctx context.Context, op, named string) (project string, own func(project string) bool, err error) {
	a, ok := boundedAccount(ctx)
	switch {
	case !ok:
		return named, a.CanUse, nil
	case named == "" && len(a.Projects) == 1:
		return a.Projects[0], a.CanUse, nil
	case named == "":
		return "", a.CanUse, nil
	}
	project, err = p.checkProject(ctx, op, named, "")
	return project, a.CanUse, err
}

// filterOwned removes the entries of projects that the caller may not see.
func filterOwned[T any](all []T, project func(T) string, own func(string) bool) []T {
	return slices.DeleteFunc(all, func(x T) bool { return !own(project(x)) })
}

// Create implements atoll.Provider.
func (p *provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	spec, err := p.checkSpec(ctx, "create", spec)
	if err != nil {
		return nil, err
	}
	sb, err := p.Provider.Create(ctx, spec)
	if _, ok := boundedAccount(ctx); !ok || err != nil {
		return sb, err
	}
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, p}, nil
}

// Reserve implements atoll.Reserver.
func (p *provider) Reserve(ctx context.Context, spec *atoll.Spec) (string, error) {
	spec, err := p.checkSpec(ctx, "reserve", spec)
	if err != nil {
		return "", err
	}
	return atoll.Reserve(ctx, p.Provider, spec)
}

// Prepare implements atoll.Preparer.
func (p *provider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	spec, err := p.checkSpec(ctx, "prepare", spec)
	if err != nil {
		return err
	}
	return atoll.Prepare(ctx, p.Provider, spec, progress)
}

// Get implements atoll.Provider. For a caller restricted to projects it calls Status of the
// sandbox.
func (p *provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := p.Provider.Get(ctx, id)
	return p.checkSandbox(ctx, "get", id, sb, err)
}

// checkSandbox returns sb, which the caller requested as ref, if the caller may use it.
func (p *provider) checkSandbox(ctx context.Context, op, ref string, sb atoll.Sandbox, err error) (atoll.Sandbox, error) {
	a, ok := boundedAccount(ctx)
	if !ok {
		return sb, err
	}
	var st atoll.Status
	if err == nil {
		st, err = sb.Status(ctx)
	}
	switch {
	case atoll.KindOf(err) == atoll.ErrNotFound: // the same error whether the sandbox exists or not
		return nil, atoll.E(op, ref, atoll.ErrNotFound, nil)
	case err != nil:
		return nil, err
	case !a.CanUse(st.Spec.Project):
		return nil, p.hideObject(ctx, op, st.Spec.Project, ref, atoll.ErrNotFound)
	}
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, p}, nil
}

// A sandbox is one of a project, for a caller who is restricted to projects.
type sandbox struct {
	atoll.SandboxLayer
	p *provider
}

// UpdateNetwork implements atoll.NetworkUpdater: an agent that has the key of its project must not open the network of its sandbox.
func (s *sandbox) UpdateNetwork(ctx context.Context, change atoll.NetworkChange) error {
	st, err := s.Sandbox.Status(ctx)
	if err == nil && st.Caps.NetworkUpdate {
		err = s.p.requireAdmin(ctx, "network", s.ID(), "a change of the network of a sandbox")
	}
	if err != nil {
		return err
	}
	return atoll.UpdateNetwork(ctx, s.Sandbox, change)
}

// Resolve implements atoll.Resolver.
func (p *provider) Resolve(ctx context.Context, project, name string) (string, error) {
	if _, ok := boundedAccount(ctx); !ok {
		return atoll.ResolveID(ctx, p.Provider, project, name)
	}
	project, err := p.checkProject(ctx, "get", project, name)
	if err != nil {
		return "", err
	}
	sb, err := atoll.Resolve(ctx, p.Provider, project, name)
	if sb, err = p.checkSandbox(ctx, "get", name, sb, err); err != nil {
		return "", err
	}
	return sb.ID(), nil
}

// List implements atoll.Provider.
func (p *provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	project, own, err := p.listScope(ctx, "list", f.Project)
	if err != nil {
		return nil, err
	}
	f.Project = project
	all, err := p.Provider.List(ctx, f)
	return filterOwned(all, func(st atoll.Status) string { return st.Spec.Project }, own), err
}

// Watch implements atoll.Provider.
func (p *provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	a, ok := boundedAccount(ctx)
	if !ok {
		return p.Provider.Watch(ctx)
	}
	return func(yield func(atoll.Event, error) bool) {
		for ev, err := range p.Provider.Watch(ctx) {
			if err == nil && ev.Type != atoll.EventSynced && !a.CanUse(ev.Status.Spec.Project) {
				continue
			}
			if !yield(ev, err) {
				return
			}
		}
	}
}

// Secret implements atoll.SecretKeeper.
func (p *provider) Secret(ctx context.Context, id string) (string, error) {
	if _, ok := boundedAccount(ctx); ok {
		if _, err := p.Get(ctx, id); err != nil {
			return "", err
		}
	}
	return atoll.SecretOf(ctx, p.Provider, id)
}

// RemoveProject implements atoll.ProjectRemover.
func (p *provider) RemoveProject(ctx context.Context, project string) error {
	if a, ok := boundedAccount(ctx); ok && !a.CanUse(project) {
		return p.denyCall(ctx, "remove project", project, project, "project not allowed")
	}
	return atoll.RemoveProject(ctx, p.Provider, project)
}

// Projects implements atoll.ProjectLister.
func (p *provider) Projects(ctx context.Context) ([]atoll.Project, error) {
	all, err := atoll.Projects(ctx, p.Provider)
	return filterOwned(all, func(x atoll.Project) string { return x.Name }, auth.AccountFrom(ctx).CanUse), err
}

// Reconcile implements registry.Reconciler.
func (p *provider) Reconcile(ctx context.Context, opts registry.ReconcileOptions) (registry.Reconciliation, error) {
	if err := p.requireAdmin(ctx, "reconcile", "", "a reconciliation covers all projects"); err != nil {
		return registry.Reconciliation{}, err
	}
	return registry.Reconcile(ctx, p.Provider, opts)
}

// Pools implements pool.Reporter. For a caller restricted to projects it counts only the pools of
// these.
func (p *provider) Pools(ctx context.Context) (pool.Report, error) {
	report, err := pool.ReportOf(ctx, p.Provider)
	a, ok := boundedAccount(ctx)
	if !ok {
		return report, err
	}
	visible := pool.Report{}
	for _, pool := range report.Pools {
		if a.CanUse(pool.Spec.Project) {
			visible.Pools, visible.Total = append(visible.Pools, pool), visible.Total.Add(pool.Stats)
		}
	}
	return visible, err
}

// Members implements atoll.Combiner. Only admins see why a member failed, because the reason may
// reveal machines of other projects.
func (p *provider) Members(ctx context.Context) ([]atoll.Member, error) {
	all, err := atoll.Members(ctx, p.Provider)
	if _, ok := boundedAccount(ctx); ok {
		all = slices.Clone(all)
		for i := range all {
			if all[i].Problem != "" {
				all[i].Problem = "unavailable; see the server's log"
			}
		}
	}
	return all, err
}

var (
	_ atoll.Resolver       = (*provider)(nil)
	_ atoll.Combiner       = (*provider)(nil)
	_ atoll.Preparer       = (*provider)(nil)
	_ atoll.ProjectRemover = (*provider)(nil)
	_ atoll.ProjectLister  = (*provider)(nil)
	_ atoll.SecretKeeper   = (*provider)(nil)
	_ registry.Reconciler  = (*provider)(nil)
	_ pool.Reporter        = (*provider)(nil)
	_ atoll.Reserver       = (*provider)(nil)
)
