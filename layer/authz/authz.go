// Package authz is a layer that limits callers to their projects. An account with
// auth.RoleProject finds the sandboxes of its projects and everything that belongs to
// them. It can't even learn that those of other projects exist.
//
//	p = authz.New(p, authz.Options{})
//	sb, err := p.Get(auth.WithAccount(ctx, account), id)
//
// The context names the caller: front-ends store the account of a token or a key in it.
// A context without an account is the program's own, which may do everything.
//
// What belongs to another project is not found. The layer returns ErrDenied if a caller
// names another project, or asks for something that concerns all projects: images, new
// workspaces, reconciliation.
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

// Options configure the layer. The zero value is fine.
type Options struct {
	// Refuse says why those who are bound to projects may not have a sandbox like
	// this made, whose project is filled in; nil means that they may.
	Refuse func(ctx context.Context, spec *atoll.Spec) error
	// Denied is told of each call that is refused, or answered as if there were
	// nothing: what was to be done, in which project and to what, each as far as it is
	// known.
	Denied func(ctx context.Context, op, project, id string)
}

type provider struct {
	atoll.ProviderLayer
	opts Options
}

// New returns a layer around p, which closes with it.
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

// bound is the caller's account, if it is bound to projects.
func bound(ctx context.Context) (a auth.Account, ok bool) {
	a = auth.AccountFrom(ctx)
	return a, a.Bounded()
}

// deny is the error of who may not do op.
func (p *provider) deny(ctx context.Context, op, project, id, format string, args ...any) error {
	p.opts.Denied(ctx, op, project, id)
	return atoll.Errorf(op, id, atoll.ErrDenied, format, args...)
}

// hide is the error of what is another project's: that of what is not there.
func (p *provider) hide(ctx context.Context, op, project, id string, kind atoll.Kind) error {
	p.opts.Denied(ctx, op, project, id)
	return atoll.E(op, id, kind, nil)
}

// forAdmins refuses what concerns all projects to who is bound to some.
func (p *provider) forAdmins(ctx context.Context, op, id, why string) error {
	if _, ok := bound(ctx); !ok {
		return nil
	}
	return p.deny(ctx, op, "", id, "%s: it takes the role %s", why, auth.RoleAdmin)
}

// project is the one that a caller means who names it, or none.
func (p *provider) project(ctx context.Context, op, named, id string) (string, error) {
	a, ok := bound(ctx)
	if !ok {
		return named, nil
	}
	if named == "" {
		named = a.ProjectOr(atoll.DefaultProject)
	}
	if !a.May(named) {
		return "", p.deny(ctx, op, named, id, "project %q is none of yours: name one of %s", named, strings.Join(a.Projects, ", "))
	}
	return named, nil
}

// listed is the project of a list, "" for that of all, and which entries are the
// caller's.
func (p *provider) listed(ctx context.Context, op, named string) (project string, own func(project string) bool, err error) {
	a, ok := bound(ctx)
	switch {
	case !ok:
		return named, a.May, nil
	case named == "" && len(a.Projects) == 1:
		return a.Projects[0], a.May, nil
	case named == "":
		return "", a.May, nil
	}
	project, err = p.project(ctx, op, named, "")
	return project, a.May, err
}

// only is the entries whose project is the caller's.
func only[T any](all []T, project func(T) string, own func(string) bool) []T {
	return slices.DeleteFunc(all, func(x T) bool { return !own(project(x)) })
}

// Create implements atoll.Provider.
func (p *provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	spec, err := p.bounded(ctx, "create", spec)
	if err != nil {
		return nil, err
	}
	return p.Provider.Create(ctx, spec)
}

// Reserve implements atoll.Reserver.
func (p *provider) Reserve(ctx context.Context, spec *atoll.Spec) (string, error) {
	spec, err := p.bounded(ctx, "reserve", spec)
	if err != nil {
		return "", err
	}
	return atoll.Reserve(ctx, p.Provider, spec)
}

// Prepare implements atoll.Preparer.
func (p *provider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	spec, err := p.bounded(ctx, "prepare", spec)
	if err != nil {
		return err
	}
	return atoll.Prepare(ctx, p.Provider, spec, progress)
}

// Get implements atoll.Provider. For those who are bound to projects the sandbox is
// asked for its status.
func (p *provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := p.Provider.Get(ctx, id)
	return p.own(ctx, "get", id, sb, err)
}

// own is what a caller gets who has asked for sb by ref.
func (p *provider) own(ctx context.Context, op, ref string, sb atoll.Sandbox, err error) (atoll.Sandbox, error) {
	a, ok := bound(ctx)
	if !ok {
		return sb, err
	}
	var st atoll.Status
	if err == nil {
		st, err = sb.Status(ctx)
	}
	switch {
	case atoll.KindOf(err) == atoll.ErrNotFound: // in the same words, whether it is there or not
		return nil, atoll.E(op, ref, atoll.ErrNotFound, nil)
	case err != nil:
		return nil, err
	case !a.May(st.Spec.Project):
		return nil, p.hide(ctx, op, st.Spec.Project, ref, atoll.ErrNotFound)
	}
	return sb, nil
}

// Resolve implements atoll.Resolver.
func (p *provider) Resolve(ctx context.Context, project, name string) (string, error) {
	if _, ok := bound(ctx); !ok {
		return atoll.ResolveID(ctx, p.Provider, project, name)
	}
	project, err := p.project(ctx, "get", project, name)
	if err != nil {
		return "", err
	}
	sb, err := atoll.Resolve(ctx, p.Provider, project, name)
	if sb, err = p.own(ctx, "get", name, sb, err); err != nil {
		return "", err
	}
	return sb.ID(), nil
}

// List implements atoll.Provider.
func (p *provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	project, own, err := p.listed(ctx, "list", f.Project)
	if err != nil {
		return nil, err
	}
	f.Project = project
	all, err := p.Provider.List(ctx, f)
	return only(all, func(st atoll.Status) string { return st.Spec.Project }, own), err
}

// Watch implements atoll.Provider.
func (p *provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	a, ok := bound(ctx)
	if !ok {
		return p.Provider.Watch(ctx)
	}
	return func(yield func(atoll.Event, error) bool) {
		for ev, err := range p.Provider.Watch(ctx) {
			if err == nil && ev.Type != atoll.EventSynced && !a.May(ev.Status.Spec.Project) {
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
	if _, ok := bound(ctx); ok {
		if _, err := p.Get(ctx, id); err != nil {
			return "", err
		}
	}
	return atoll.Secret(ctx, p.Provider, id)
}

// RemoveProject implements atoll.ProjectRemover.
func (p *provider) RemoveProject(ctx context.Context, project string) error {
	if a, ok := bound(ctx); ok && !a.May(project) {
		return p.deny(ctx, "remove project", project, project, "it is none of yours")
	}
	return atoll.RemoveProject(ctx, p.Provider, project)
}

// Projects implements atoll.ProjectLister.
func (p *provider) Projects(ctx context.Context) ([]atoll.Project, error) {
	all, err := atoll.Projects(ctx, p.Provider)
	return only(all, func(x atoll.Project) string { return x.Name }, auth.AccountFrom(ctx).May), err
}

// Reconcile implements registry.Reconciler.
func (p *provider) Reconcile(ctx context.Context, opts registry.ReconcileOptions) (registry.Reconciliation, error) {
	if err := p.forAdmins(ctx, "reconcile", "", "it is about the sandboxes of all projects"); err != nil {
		return registry.Reconciliation{}, err
	}
	return registry.Reconcile(ctx, p.Provider, opts)
}

// Pools implements pool.Reporter. To those who are bound to projects it counts
// what is theirs.
func (p *provider) Pools(ctx context.Context) (pool.Report, error) {
	report, err := pool.ReportOf(ctx, p.Provider)
	a, ok := bound(ctx)
	if !ok {
		return report, err
	}
	mine := pool.Report{}
	for _, pool := range report.Pools {
		if a.May(pool.Spec.Project) {
			mine.Pools, mine.Total = append(mine.Pools, pool), mine.Total.Add(pool.Stats)
		}
	}
	return mine, err
}

// Members implements atoll.Combiner. Why one could not be asked is for admins: it
// may tell of machines of other projects.
func (p *provider) Members(ctx context.Context) ([]atoll.Member, error) {
	all, err := atoll.Members(ctx, p.Provider)
	if _, ok := bound(ctx); ok {
		all = slices.Clone(all)
		for i := range all {
			if all[i].Problem != "" {
				all[i].Problem = "it does not work: the server's log says why"
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
