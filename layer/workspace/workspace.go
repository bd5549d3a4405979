// Package workspace is a layer that keeps what the sandboxes of a project work
// on: directories that are used in place, and clones of git repositories, of
// which each sandbox gets a check-out of its own.
//
// A workspace that is used in place is one more bind mount of a sandbox. A
// clone's tree is put into a sandbox's data volume, by its file system, before it
// first starts; so it works wherever the sandbox is. Which workspace a sandbox
// has is in its environment, where the provider keeps it, and its programs find
// it: the layer itself remembers workspaces only.
//
// What a repository holds is data here. It is never checked out on the machine
// that keeps the clone: no hook, filter, submodule or link of it means anything
// before it is inside a sandbox.
package workspace

import (
	"context"
	"iter"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Options say where workspaces are kept, and what a clone may cost.
type Options struct {
	// Dir holds the clones, for all programs that use it at once. It is made
	// when it is needed.
	Dir string
	// Timeout is how long a clone may take; 0 means DefaultTimeout.
	Timeout time.Duration
	// Limit is how large one may become, give or take what arrives in a second,
	// and a check-out of it, in which a file counts for 4 KiB at least; 0 means
	// DefaultLimit.
	Limit atoll.Bytes
}

// What a clone may cost, unless the Options say otherwise.
const (
	DefaultTimeout             = 30 * time.Minute
	DefaultLimit   atoll.Bytes = 16 << 30
)

// The environment of a sandbox that has a workspace, besides what its programs may know.
const (
	envPrefix = Var
	envName   = envPrefix + "_NAME"
	envAsleep = envPrefix + "_ASLEEP" // of a clone: that Create was not to start it
)

type provider struct {
	atoll.ProviderLayer
	store store
	info  atoll.Info
}

// New returns a layer around p, which closes with it. The sandboxes of p can have
// workspaces where p can mount directories, or has both files and volumes.
func New(p atoll.Provider, opts Options) atoll.Provider {
	if opts.Timeout == 0 {
		opts.Timeout = DefaultTimeout
	}
	if opts.Limit == 0 {
		opts.Limit = DefaultLimit
	}
	info := p.Info()
	info.Caps = caps(info.Caps)
	return &provider{atoll.ProviderLayer{Provider: p}, store{opts}, info}
}

// caps are those of a provider or a sandbox with the layer around it.
func caps(c atoll.Caps) atoll.Caps {
	c.Workspaces = c.BindMounts || copies(c)
	return c
}

// copies reports whether a tree can be put into a sandbox before it starts.
func copies(c atoll.Caps) bool { return c.Files && c.Volumes }

// Info implements atoll.Provider.
func (p *provider) Info() atoll.Info { return p.info }

// Create implements atoll.Provider.
func (p *provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if i := slices.IndexFunc(spec.Env, isOurs); i >= 0 && p.info.Caps.Workspaces {
		name, _, _ := strings.Cut(spec.Env[i], "=")
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "environment %s: what begins so is set by the workspace", name)
	}
	if spec.Workspace == (atoll.WorkspaceRef{}) || !p.info.Caps.Workspaces {
		return p.wrap(p.Provider.Create(ctx, spec))
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	k, err := p.use(ctx, spec, nil)
	if err != nil {
		return nil, err
	}
	if k.Type() == TypeLocal {
		return p.wrap(p.createInPlace(ctx, spec, k))
	}
	return p.wrap(p.createCopy(ctx, spec, k))
}

// use finds the workspace that spec names, or adds that of its source, and sees
// to it that it is ready.
func (p *provider) use(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) (*kept, error) {
	ref, at := spec.Workspace, key{projectOf(spec.Project), spec.Workspace.Name}
	if ref.Source != "" {
		at.name = nameOf(ref.Source)
		_, err := p.store.add(ctx, &Spec{Project: at.project, Name: at.name, Source: ref.Source}, progress)
		if err != nil && atoll.KindOf(err) != atoll.ErrAlreadyExists {
			return nil, err
		}
	}
	k, err := p.store.ready(ctx, at, progress)
	if err != nil {
		return nil, err
	}
	bad := func(kind atoll.Kind, format string, args ...any) error {
		return atoll.Errorf("create", spec.Name, kind, format, args...)
	}
	switch {
	case ref.Source != "" && (k.Source != ref.Source || k.Revision != ""):
		return nil, bad(atoll.ErrConflict, "workspace %s has another source: name the workspace that you mean", at.name)
	case k.Type() == TypeLocal && ref.Commit != "":
		return nil, bad(atoll.ErrInvalid, "workspace %s is a directory that is used in place: it has no commits", at.name)
	case k.Type() == TypeGit && ref.ReadOnly:
		return nil, bad(atoll.ErrInvalid, "workspace %s is copied into each sandbox, which may write to it", at.name)
	}
	return k, nil
}

// createInPlace makes a sandbox to which the directory is mounted.
func (p *provider) createInPlace(ctx context.Context, spec *atoll.Spec, k *kept) (atoll.Sandbox, error) {
	c := with(spec, k, Dir, "")
	c.Mounts = append(c.Mounts, atoll.Mount{
		Type: atoll.MountBind, Source: k.Source, Target: Dir, ReadOnly: k.ReadOnly || spec.Workspace.ReadOnly,
	})
	if c.Workdir == "" {
		c.Workdir = Dir
	}
	sb, err := p.Provider.Create(ctx, c)
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrUnsupported,
			"%w (workspace %s is a directory that is used in place: where that cannot be mounted, a git repository is copied, if you add it as file://%s)",
			cause(err), k.Name, k.Source)
	}
	return sb, err
}

// with is spec for a sandbox that finds the workspace in dir.
func with(spec *atoll.Spec, k *kept, dir, commit string) *atoll.Spec {
	c := spec.Clone()
	c.Workspace = atoll.WorkspaceRef{}
	c.Env = append(c.Env, Var+"="+dir, envName+"="+k.Name, SourceVar+"="+k.Source)
	if commit != "" {
		c.Env = append(c.Env, CommitVar+"="+commit)
	}
	return c
}

func isOurs(kv string) bool { return strings.HasPrefix(kv, envPrefix) }

// reveal shows in spec, which the provider has, the workspace that it was made
// with, in place of what that was turned into.
func reveal(spec *atoll.Spec) {
	name := variable(spec.Env, envName)
	if name == "" {
		return
	}
	spec.Workspace = atoll.WorkspaceRef{Name: name, Commit: variable(spec.Env, CommitVar)}
	if spec.Workspace.Commit != "" {
		spec.NoStart = variable(spec.Env, envAsleep) != ""
	}
	var mounts []atoll.Mount
	for _, m := range spec.Mounts {
		if spec.Workspace.Commit == "" && m.Target == Dir {
			spec.Workspace.ReadOnly = m.ReadOnly
			continue
		}
		mounts = append(mounts, m)
	}
	var env []string
	for _, kv := range spec.Env {
		if !isOurs(kv) {
			env = append(env, kv)
		}
	}
	spec.Mounts, spec.Env = mounts, env
}

// variable is the value of a variable in env; "" if it is not there.
func variable(env []string, name string) string {
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

func shown(st atoll.Status) atoll.Status {
	reveal(&st.Spec)
	st.Caps = caps(st.Caps)
	return st
}

// Members implements atoll.Combiner.
func (p *provider) Members(ctx context.Context) ([]atoll.Member, error) {
	all, err := atoll.Members(ctx, p.Provider)
	for i := range all {
		all[i].Caps = caps(all[i].Caps)
	}
	return all, err
}

// Get implements atoll.Provider.
func (p *provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	return p.wrap(p.Provider.Get(ctx, id))
}

func (p *provider) wrap(sb atoll.Sandbox, err error) (atoll.Sandbox, error) {
	if err != nil {
		return nil, err
	}
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, p}, nil
}

// List implements atoll.Provider.
func (p *provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	all, err := p.Provider.List(ctx, f)
	for i := range all {
		all[i] = shown(all[i])
	}
	return all, err
}

// Watch implements atoll.Provider.
func (p *provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		for ev, err := range p.Provider.Watch(ctx) {
			if ev.Type == atoll.EventState {
				ev.Status = shown(ev.Status.Clone())
			}
			if !yield(ev, err) {
				return
			}
		}
	}
}

// Snapshots implements atoll.SnapshotStore.
func (p *provider) Snapshots(ctx context.Context) ([]atoll.Snapshot, error) {
	all, err := atoll.Snapshots(ctx, p.Provider)
	for i := range all {
		reveal(&all[i].Spec)
	}
	return all, err
}

// Prepare implements atoll.Preparer: it clones what Create would have to.
func (p *provider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	if spec.Workspace == (atoll.WorkspaceRef{}) || !p.info.Caps.Workspaces {
		return atoll.Prepare(ctx, p.Provider, spec, progress)
	}
	if err := spec.Validate(); err != nil {
		return err
	}
	if _, err := p.use(ctx, spec, progress); err != nil {
		return err
	}
	c := spec.Clone()
	c.Workspace = atoll.WorkspaceRef{}
	return atoll.Prepare(ctx, p.Provider, c, progress)
}

// Probe implements atoll.Prober.
func (p *provider) Probe(ctx context.Context) atoll.Probe {
	probe := atoll.ProbeProvider(ctx, p.Provider)
	if _, err := exec.LookPath("git"); err != nil && probe.OK && copies(p.info.Caps) {
		probe.Notes = append(probe.Notes, "git repositories cannot be workspaces: there is no git program (install git)")
	}
	return probe
}

// RemoveProject implements atoll.ProjectRemover: the workspaces go after the
// sandboxes. A directory that is used in place stays.
func (p *provider) RemoveProject(ctx context.Context, project string) error {
	if err := atoll.RemoveProject(ctx, p.Provider, project); err != nil || !p.info.Caps.Workspaces {
		return err
	}
	return p.store.removeProject(ctx, project)
}

// Workspaces implements workspace.Manager.
func (p *provider) Workspaces(ctx context.Context, project string) ([]Workspace, error) {
	if !p.info.Caps.Workspaces {
		return List(ctx, p.Provider, project)
	}
	used, err := p.used(ctx, project)
	if err != nil {
		return nil, err
	}
	all, err := p.store.list(ctx, project)
	for i, w := range all {
		all[i].InUse = used[key{w.Project, w.Name}]
	}
	return all, err
}

// used is the set of workspaces that sandboxes were made with.
func (p *provider) used(ctx context.Context, project string) (map[key]bool, error) {
	all, err := p.Provider.List(ctx, atoll.Filter{Project: project})
	if err != nil {
		return nil, err
	}
	used := map[key]bool{}
	for _, st := range all {
		used[key{st.Spec.Project, variable(st.Spec.Env, envName)}] = true
	}
	return used, nil
}

// AddWorkspace implements workspace.Manager.
func (p *provider) AddWorkspace(ctx context.Context, spec *Spec, progress func(atoll.Progress)) (Workspace, error) {
	if !p.info.Caps.Workspaces {
		return Add(ctx, p.Provider, spec, progress)
	}
	if err := spec.Validate(); err != nil {
		return Workspace{}, err
	}
	c := *spec
	c.Project = projectOf(c.Project)
	k, err := p.store.add(ctx, &c, progress)
	if err != nil {
		return Workspace{}, err
	}
	return p.store.describe(k), nil
}

// UpdateWorkspace implements workspace.Manager.
func (p *provider) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (Workspace, error) {
	if !p.info.Caps.Workspaces {
		return Update(ctx, p.Provider, project, name, progress)
	}
	k, err := p.store.update(ctx, key{projectOf(project), name}, progress)
	if err != nil {
		return Workspace{}, err
	}
	w := p.store.describe(k)
	used, err := p.used(ctx, w.Project)
	w.InUse = used[key{w.Project, w.Name}]
	return w, err
}

// RemoveWorkspace implements workspace.Manager.
func (p *provider) RemoveWorkspace(ctx context.Context, project, name string) error {
	if !p.info.Caps.Workspaces {
		return Remove(ctx, p.Provider, project, name)
	}
	at := key{projectOf(project), name}
	return p.store.remove(ctx, at, func() error {
		used, err := p.used(ctx, at.project)
		if err == nil && used[at] {
			err = atoll.Errorf("remove workspace", name, atoll.ErrConflict, "a sandbox was made with it: remove that first")
		}
		return err
	})
}

func projectOf(project string) string {
	if project == "" {
		return atoll.DefaultProject
	}
	return project
}

// below reports whether a mount's target is dir or in it.
func below(dir, target string) bool {
	target = path.Clean(target)
	return target == dir || strings.HasPrefix(target, dir+"/")
}

// RemoveSnapshot forwards.
func (p *provider) RemoveSnapshot(ctx context.Context, id string) error {
	return atoll.RemoveSnapshot(ctx, p.Provider, id)
}

var (
	_ Manager              = (*provider)(nil)
	_ atoll.ProjectRemover = (*provider)(nil)
)
