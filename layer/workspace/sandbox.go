package workspace

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// undoTime is how long taking back a creation may last.
const undoTime = time.Minute

// createCopy makes a sandbox, puts the tree of the workspace's clone into it, and
// starts it. When that fails, nothing is left.
func (p *provider) createCopy(ctx context.Context, spec *atoll.Spec, k *kept) (sb atoll.Sandbox, err error) {
	commit, err := k.commit(ctx, spec.Workspace.Commit, p.store.Limit)
	if err != nil {
		return nil, atoll.E("create", spec.Name, atoll.KindOf(err), cause(err))
	}
	if err := roomFor(spec); err != nil {
		return nil, err
	}
	c := with(spec, k, atoll.DefaultWorkdir, commit)
	if spec.NoStart {
		c.Env = append(c.Env, envAsleep+"=1")
	}
	c.NoStart = true
	if c.ID, err = atoll.NormalizeID(cmp.Or(c.ID, atoll.NewID())); err != nil {
		return nil, err
	}
	unlock, err := p.store.lockCopy(ctx, c.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	before, err := atoll.Volumes(ctx, p.Provider, projectOf(c.Project))
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "workspace %s has to be copied into the sandbox, and there are no volumes", k.Name)
	}
	if err != nil {
		return nil, err
	}
	if sb, err = p.Provider.Create(ctx, c); err != nil {
		return nil, err
	}
	if err = p.fill(ctx, sb, k, commit); err == nil && !spec.NoStart {
		err = sb.Start(ctx)
	}
	if err == nil {
		err = ctx.Err() // nobody waits for it any more
	}
	if err == nil {
		return sb, nil
	}
	if left := p.undo(ctx, sb, c, before); left != nil {
		err = errors.Join(err, left)
	}
	return nil, err
}

// roomFor refuses a spec by which there is no telling what DefaultWorkdir will be.
func roomFor(spec *atoll.Spec) error {
	if spec.Workdir != "" && !below(atoll.DefaultWorkdir, spec.Workdir) {
		return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "workdir %s: the workspace is put into %s: leave workdir empty, or name a directory there",
			spec.Workdir, atoll.DefaultWorkdir)
	}
	for _, m := range spec.Mounts {
		if below(atoll.DefaultWorkdir, m.Target) {
			return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "mount target %s: the workspace is put into %s: mount it elsewhere", m.Target, atoll.DefaultWorkdir)
		}
	}
	return nil
}

// undo removes a sandbox that could not be finished, and the volumes that were
// made for it.
func (p *provider) undo(ctx context.Context, sb atoll.Sandbox, spec *atoll.Spec, before []atoll.Volume) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	var opts []atoll.RemoveOption
	if !slices.ContainsFunc(before, func(v atoll.Volume) bool { return v.Sandbox == spec.ID }) {
		opts = append(opts, atoll.RemoveVolumes())
	}
	if err := sb.Remove(ctx, opts...); err != nil {
		return err
	}
	var names []string
	if spec.Cache {
		names = append(names, atoll.CacheVolume)
	}
	for _, m := range spec.Mounts {
		if m.Type == atoll.MountVolume {
			names = append(names, m.Source)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(before, func(v atoll.Volume) bool { return v.Name == name }) {
			_ = atoll.RemoveVolume(ctx, p.Provider, projectOf(spec.Project), name) // unless another sandbox uses it by now
		}
	}
	return nil
}

// unfinished is a file that is in a work directory until the whole tree is. No
// repository can have it.
const unfinished = ".git/atoll-unfinished"

// fill puts the tree into a sandbox that has never been started, unless there is
// something in its work directory. What an earlier attempt has left there, which
// holds the mark, is replaced. The caller has the lock of the copy.
func (p *provider) fill(ctx context.Context, sb atoll.Sandbox, k *kept, commit string) error {
	st, err := sb.Status(ctx)
	if err != nil {
		return err
	}
	files, mark := atoll.Files(sb), path.Join(atoll.DefaultWorkdir, unfinished)
	fresh, err := untouched(ctx, files, st.Spec.Workdir)
	if err != nil {
		return err
	}
	if !fresh {
		if _, err := files.Stat(ctx, mark); err != nil {
			return ignore(err, fs.ErrNotExist) // the files of an earlier sandbox
		}
		if err := clearAttempt(ctx, files, st.Spec.Workdir); err != nil {
			return err
		}
	}
	if err := k.pour(ctx, commit, func(r io.Reader) error { return files.ReadTar(ctx, atoll.DefaultWorkdir, r) }); err != nil {
		return err
	}
	return files.Remove(ctx, mark, false)
}

// untouched reports whether nothing is in DefaultWorkdir but what the sandbox was
// made with: its work directory, if that is one below.
func untouched(ctx context.Context, files atoll.FS, workdir string) (bool, error) {
	for dir := atoll.DefaultWorkdir; ; {
		there, err := files.List(ctx, dir, false)
		if err != nil || len(there) == 0 {
			return err == nil, err
		}
		if only := there[0]; len(there) > 1 || only.Type != atoll.TypeDirectory || !below(only.Path, workdir) {
			return false, nil
		}
		dir = there[0].Path
	}
}

// clearAttempt removes all but the repository, which has the mark, and of which
// each file will be replaced.
func clearAttempt(ctx context.Context, files atoll.FS, workdir string) error {
	there, err := files.List(ctx, atoll.DefaultWorkdir, false)
	if err != nil {
		return err
	}
	for _, f := range there {
		if f.Name == ".git" {
			continue
		}
		if err := files.Remove(ctx, f.Path, true); ignore(err, fs.ErrNotExist) != nil {
			return err
		}
	}
	return files.Mkdir(ctx, workdir, 0o755)
}

func ignore(err, one error) error {
	if errors.Is(err, one) {
		return nil
	}
	return err
}

// A sandbox is one that may have a workspace.
type sandbox struct {
	atoll.SandboxLayer
	p *provider
}

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.Sandbox.Status(ctx)
	return shown(st), err
}

// Snapshot implements atoll.Snapshotter.
func (s *sandbox) Snapshot(ctx context.Context) (atoll.Snapshot, error) {
	snap, err := atoll.TakeSnapshot(ctx, s.Sandbox)
	reveal(&snap.Spec)
	return snap, err
}

// Start implements atoll.Sandbox. It finishes a check-out that Create was killed
// in the middle of.
func (s *sandbox) Start(ctx context.Context) error {
	st, err := s.Sandbox.Status(ctx)
	if err != nil {
		return err
	}
	commit := variable(st.Spec.Env, CommitVar)
	if commit == "" || st.State != atoll.StateCreated {
		return s.Sandbox.Start(ctx)
	}
	unlock, err := s.p.store.lockCopy(ctx, s.ID())
	if err != nil {
		return err
	}
	defer unlock()
	if st, err = s.Sandbox.Status(ctx); err != nil {
		return err
	}
	if st.State == atoll.StateCreated { // still
		if err := s.finish(ctx, &st, commit); err != nil {
			return err
		}
	}
	return s.Sandbox.Start(ctx)
}

func (s *sandbox) finish(ctx context.Context, st *atoll.Status, commit string) error {
	k, err := s.p.store.ready(ctx, key{st.Spec.Project, variable(st.Spec.Env, envName)}, nil)
	if err == nil {
		_, err = k.commit(ctx, commit, s.p.store.Limit)
	}
	if err == nil {
		err = s.p.fill(ctx, s.Sandbox, k, commit)
	}
	return err
}

var (
	_ atoll.Sandbox     = (*sandbox)(nil)
	_ atoll.Snapshotter = (*sandbox)(nil)
)
