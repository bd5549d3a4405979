// Package workspace is a layer that manages the workspaces of a project: directories that
// sandboxes use in place, and clones of git repositories, of which each sandbox gets its own
// check-out.
//
// The layer mounts a directory used in place into the sandbox. It copies the tree of a clone into
// the data volume of a sandbox before the first start, through the sandbox's file system, so this
// works wherever the sandbox is. The environment of the sandbox records its workspace, for its
// programs and for the layer; the layer itself stores only workspaces.
//
// The layer treats the content of a repository as data. It never checks a repository out on the
// machine that stores the clone, so that hooks, filters, submodules and links have no effect
// outside of sandboxes.
package workspace

import (
	"cmp"
	"context"
	"iter"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Options configure where clones are stored and how large they may be.
type Options struct {
	// Dir is the directory of the clones, which several programs may share. It is created when
	// needed.
	Dir string
	// Timeout limits the duration of a clone; 0 means DefaultTimeout.
	Timeout time.Duration
	// Limit is the maximum size of a clone, which may exceed it for up to a second, and of a
	// check-out, in which each file counts for at least 4 KiB. 0 means DefaultLimit.
	Limit atoll.Bytes
}

// Defaults of the Options.
const (
	DefaultTimeout             = 30 * time.Minute
	DefaultLimit   atoll.Bytes = 16 << 30
)

const (
	envPrefix = Var // of the variables of a sandbox that describe its workspace
	envName   = envPrefix + "_NAME"
)

// The keys of the notes about a sandbox's workspace.
const (
	noteName    = "workspace.name"
	noteDir     = "workspace.dir"      // of a directory used in place, if it is not Dir
	noteMounts  = "workspace.mounts"   // of a directory used in place: the number of mounts for it, if it is not one
	noteCommit  = "workspace.commit"   // of a copy
	noteNoStart = "workspace.no_start" // of a copy: Create had NoStart set
)

type provider struct {
	atoll.ProviderLayer
	store store
	info  atoll.Info
}

// New returns a layer around p, which Close closes. Sandboxes of p can have workspaces if p can
// mount directories, or has both files and volumes.
func New(p atoll.Provider, opts Options) atoll.Provider {
	if opts.Timeout == 0 {
		opts.Timeout = DefaultTimeout
	}
	if opts.Limit == 0 {
		opts.Limit = DefaultLimit
	}
	info := p.Info()
	info.Caps = withWorkspaces(info.Caps)
	return &provider{atoll.ProviderLayer{Provider: p}, store{opts}, info}
}

// withWorkspaces returns c with Workspaces set as the layer provides it.
func withWorkspaces(c atoll.Caps) atoll.Caps {
	c.Workspaces = c.BindMounts || canCopy(c)
	return c
}

// canCopy reports whether the layer can copy a tree into a sandbox before it starts.
func canCopy(c atoll.Caps) bool { return c.Files && c.Volumes }

// Info implements atoll.Provider.
func (p *provider) Info() atoll.Info { return p.info }

// Create implements atoll.Provider.
func (p *provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if i := slices.IndexFunc(spec.Env, isWorkspaceVar); i >= 0 && p.info.Caps.Workspaces {
		name, _, _ := strings.Cut(spec.Env[i], "=")
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "environment %s: variables with the prefix %s are reserved", name, envPrefix)
	}
	if spec.Workspace == (atoll.WorkspaceRef{}) || !p.info.Caps.Workspaces {
		return p.wrapSandbox(p.Provider.Create(ctx, trustBinds(spec)))
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	k, err := p.findWorkspace(ctx, spec, nil)
	if err != nil {
		return nil, err
	}
	if k.Type() == TypeLocal {
		return p.wrapSandbox(p.createInPlace(ctx, spec, k))
	}
	return p.wrapSandbox(p.createCopy(ctx, spec, k))
}

// findWorkspace returns the workspace that spec names, ready for use. It adds one if spec has a
// source instead of a name.
func (p *provider) findWorkspace(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) (*record, error) {
	ref, at := spec.Workspace, workspaceKey{projectOf(spec.Project), spec.Workspace.Name}
	k, err := p.addSource(ctx, &at, ref.Source, progress)
	if err != nil {
		return nil, err
	}
	bad := func(kind atoll.Kind, format string, args ...any) error {
		return atoll.Errorf("create", spec.Name, kind, format, args...)
	}
	switch {
	case ref.Source != "" && (k.Source != ref.Source || k.Revision != ""):
		return nil, bad(atoll.ErrConflict, "workspace %s has another source or a revision; use its name instead of a source", at.name)
	case k.Type() == TypeLocal && ref.Commit != "":
		return nil, bad(atoll.ErrInvalid, "workspace %s is a directory used in place, without commits", at.name)
	case k.Type() == TypeGit && ref.ReadOnly:
		return nil, bad(atoll.ErrInvalid, "workspace %s is a git repository and cannot be read-only: each sandbox has its own copy", at.name)
	}
	return k, nil
}

// addSource returns the workspace at, or if there is a source, that of the source, which it adds if it is missing and
// names in at. If that cannot be cloned, no workspace remains: the caller named none.
func (p *provider) addSource(ctx context.Context, at *workspaceKey, source string, progress func(atoll.Progress)) (*record, error) {
	if source == "" {
		return p.store.awaitReady(ctx, *at, progress)
	}
	at.name = nameOf(source)
	k, err := p.store.addWorkspace(ctx, &Spec{Project: at.project, Name: at.name, Source: source}, false, progress)
	if atoll.KindOf(err) != atoll.ErrAlreadyExists {
		return k, err
	}
	k, err = p.store.awaitReady(ctx, *at, progress)
	if atoll.KindOf(err) == atoll.ErrNotExist && !p.store.hasRecord(*at) {
		err = atoll.Errorf("add workspace", at.name, atoll.ErrUnavailable, "another call could not clone %s, or has removed the workspace: try again", source)
	}
	return k, err
}

// createInPlace creates a sandbox with the directory mounted at Dir, or at its own path if its git directory
// is elsewhere.
func (p *provider) createInPlace(ctx context.Context, spec *atoll.Spec, k *record) (atoll.Sandbox, error) {
	mounts := mountsFor(k.Source, k.ReadOnly || spec.Workspace.ReadOnly)
	dir := mounts[0].Target
	mounts = slices.DeleteFunc(mounts, func(m atoll.Mount) bool { // the user has mounted a part
		return m.Target != dir && slices.ContainsFunc(spec.Mounts, func(o atoll.Mount) bool { return path.Clean(o.Target) == m.Target })
	})
	c := workspaceSpec(spec, k, dir, "")
	if dir != Dir {
		c.AddNote(noteDir, dir)
		c.AddNote(noteMounts, strconv.Itoa(len(mounts)))
	}
	c.Mounts = append(c.Mounts, mounts...)
	if c.Workdir == "" {
		c.Workdir = dir
	} else if rest, ok := strings.CutPrefix(path.Clean(c.Workdir)+"/", Dir+"/"); ok {
		c.Workdir = path.Join(dir, rest)
	}
	sb, err := p.Provider.Create(ctx, c)
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrUnsupported,
			"%w (workspace %s is a directory used in place; if it is a git repository, add it as file://%s to have it copied instead)",
			rootCause(err), k.Name, k.Source)
	}
	return sb, err
}

// workspaceSpec returns spec for the wrapped provider, with the workspace at dir in its
// environment and its notes.
func workspaceSpec(spec *atoll.Spec, k *record, dir, commit string) *atoll.Spec {
	c := spec.Clone()
	c.Workspace = atoll.WorkspaceRef{}
	c.System.Env = append(c.System.Env, Var+"="+dir, envName+"="+k.Name, SourceVar+"="+k.Source)
	c.System.Env = append(c.System.Env, trustVars(spec.Env)...)
	c.AddNote(noteName, k.Name)
	if commit != "" {
		c.System.Env = append(c.System.Env, CommitVar+"="+commit)
		c.AddNote(noteCommit, commit)
	}
	return c
}

// trustVars returns the variables by which git trusts a workspace whose owner is not the user of the sandbox: the user
// who creates the sandbox has chosen it. It returns none if env has git settings of its own.
func trustVars(env []string) []string {
	if slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "GIT_CONFIG_COUNT=") }) {
		return nil
	}
	return []string{"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}
}

// trustBinds returns spec with the variables by which git trusts the directories of the host that spec mounts.
func trustBinds(spec *atoll.Spec) *atoll.Spec {
	if !slices.ContainsFunc(spec.Mounts, func(m atoll.Mount) bool { return m.Type == atoll.MountBind }) {
		return spec
	}
	c := spec.Clone()
	c.System.Env = append(c.System.Env, trustVars(spec.Env)...)
	return c
}

func isWorkspaceVar(kv string) bool { return strings.HasPrefix(kv, envPrefix) }

// restoreSpec replaces the mount that the layer added to spec by the workspace.
func restoreSpec(spec *atoll.Spec) {
	name := spec.Note(noteName)
	if name == "" {
		return
	}
	spec.Workspace = atoll.WorkspaceRef{Name: name, Commit: spec.Note(noteCommit)}
	if spec.Workspace.Commit != "" {
		spec.NoStart = spec.Note(noteNoStart) != ""
	}
	if spec.Workspace.Commit != "" {
		return
	}
	dir := cmp.Or(spec.Note(noteDir), Dir)
	i := slices.IndexFunc(spec.Mounts, func(m atoll.Mount) bool { return m.Target == dir })
	if i < 0 {
		return
	}
	n, err := strconv.Atoi(cmp.Or(spec.Note(noteMounts), "1"))
	if err != nil || i+n > len(spec.Mounts) {
		n = 1
	}
	spec.Workspace.ReadOnly = spec.Mounts[i].ReadOnly
	spec.Mounts = slices.Delete(slices.Clone(spec.Mounts), i, i+n)
	if len(spec.Mounts) == 0 {
		spec.Mounts = nil
	}
}

func restoreStatus(st atoll.Status) atoll.Status {
	restoreSpec(&st.Spec)
	st.Caps = withWorkspaces(st.Caps)
	return st
}

// Members implements atoll.Combiner.
func (p *provider) Members(ctx context.Context) ([]atoll.Member, error) {
	all, err := atoll.Members(ctx, p.Provider)
	for i := range all {
		all[i].Caps = withWorkspaces(all[i].Caps)
	}
	return all, err
}

// Get implements atoll.Provider.
func (p *provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	return p.wrapSandbox(p.Provider.Get(ctx, id))
}

func (p *provider) wrapSandbox(sb atoll.Sandbox, err error) (atoll.Sandbox, error) {
	if err != nil {
		return nil, err
	}
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, p}, nil
}

// List implements atoll.Provider.
func (p *provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	all, err := p.Provider.List(ctx, f)
	for i := range all {
		all[i] = restoreStatus(all[i])
	}
	return all, err
}

// Watch implements atoll.Provider.
func (p *provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		for ev, err := range p.Provider.Watch(ctx) {
			if ev.Type == atoll.EventState {
				ev.Status = restoreStatus(ev.Status.Clone())
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
		restoreSpec(&all[i].Spec)
	}
	return all, err
}

// Prepare implements atoll.Preparer. It clones the repository of the spec's workspace, too.
func (p *provider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	if spec.Workspace == (atoll.WorkspaceRef{}) || !p.info.Caps.Workspaces {
		return atoll.Prepare(ctx, p.Provider, spec, progress)
	}
	if err := spec.Validate(); err != nil {
		return err
	}
	if _, err := p.findWorkspace(ctx, spec, progress); err != nil {
		return err
	}
	c := spec.Clone()
	c.Workspace = atoll.WorkspaceRef{}
	return atoll.Prepare(ctx, p.Provider, c, progress)
}

// Probe implements atoll.Prober.
func (p *provider) Probe(ctx context.Context) atoll.Probe {
	probe := atoll.ProbeProvider(ctx, p.Provider)
	if _, err := exec.LookPath("git"); err != nil && probe.OK && canCopy(p.info.Caps) {
		probe.Notes = append(probe.Notes, "workspaces cannot be git repositories: git not found; install git")
	}
	return probe
}

// RemoveProject implements atoll.ProjectRemover. It removes the workspaces after the sandboxes,
// but does not touch directories used in place.
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
	used, err := p.usedWorkspaces(ctx, project)
	if err != nil {
		return nil, err
	}
	all, err := p.store.listWorkspaces(ctx, project)
	for i, w := range all {
		all[i].InUse = used[workspaceKey{w.Project, w.Name}]
	}
	return all, err
}

// usedWorkspaces returns the workspaces of existing sandboxes.
func (p *provider) usedWorkspaces(ctx context.Context, project string) (map[workspaceKey]bool, error) {
	all, err := p.Provider.List(ctx, atoll.Filter{Project: project})
	if err != nil {
		return nil, err
	}
	used := map[workspaceKey]bool{}
	for _, st := range all {
		used[workspaceKey{st.Spec.Project, st.Spec.Note(noteName)}] = true
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
	k, err := p.store.addWorkspace(ctx, &c, true, progress)
	if err != nil {
		return Workspace{}, err
	}
	return p.store.describeWorkspace(k), nil
}

// UpdateWorkspace implements workspace.Manager.
func (p *provider) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (Workspace, error) {
	if !p.info.Caps.Workspaces {
		return Update(ctx, p.Provider, project, name, progress)
	}
	k, err := p.store.updateWorkspace(ctx, workspaceKey{projectOf(project), name}, progress)
	if err != nil {
		return Workspace{}, err
	}
	w := p.store.describeWorkspace(k)
	used, err := p.usedWorkspaces(ctx, w.Project)
	w.InUse = used[workspaceKey{w.Project, w.Name}]
	return w, err
}

// RemoveWorkspace implements workspace.Manager.
func (p *provider) RemoveWorkspace(ctx context.Context, project, name string) error {
	if !p.info.Caps.Workspaces {
		return Remove(ctx, p.Provider, project, name)
	}
	at := workspaceKey{projectOf(project), name}
	return p.store.removeWorkspace(ctx, at, func() error {
		used, err := p.usedWorkspaces(ctx, at.project)
		if err == nil && used[at] {
			err = atoll.Errorf("remove workspace", name, atoll.ErrConflict, "in use by a sandbox; remove the sandbox first")
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

// isBelow reports whether target is dir or below it.
func isBelow(dir, target string) bool {
	target = path.Clean(target)
	return target == dir || strings.HasPrefix(target, dir+"/")
}

// RemoveSnapshot implements atoll.SnapshotStore.
func (p *provider) RemoveSnapshot(ctx context.Context, id string) error {
	return atoll.RemoveSnapshot(ctx, p.Provider, id)
}

var (
	_ Manager              = (*provider)(nil)
	_ atoll.ProjectRemover = (*provider)(nil)
)
