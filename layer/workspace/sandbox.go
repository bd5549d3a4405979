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

// undoTimeout limits the cleanup after a failed creation.
const undoTimeout = time.Minute

// createCopy creates a sandbox, copies the tree of the workspace's clone into it, and starts it.
// If a step fails, createCopy removes the sandbox.
func (p *provider) createCopy(ctx context.Context, spec *atoll.Spec, k *record) (sb atoll.Sandbox, err error) {
	commit, err := k.resolveCommit(ctx, spec.Workspace.Commit, p.store.Limit)
	if err != nil {
		return nil, atoll.E("create", spec.Name, atoll.KindOf(err), rootCause(err))
	}
	if err := checkWorkdir(spec); err != nil {
		return nil, err
	}
	c := workspaceSpec(spec, k, atoll.DefaultWorkdir, commit)
	if spec.NoStart {
		c.AddNote(noteNoStart, "true")
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
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "workspace %s needs a data volume, and the provider has no volumes", k.Name)
	}
	if err != nil {
		return nil, err
	}
	if sb, err = p.Provider.Create(ctx, c); err != nil {
		return nil, err
	}
	if err = p.copyTree(ctx, sb, k, commit); err == nil && !spec.NoStart {
		err = sb.Start(ctx)
	}
	if err == nil {
		err = ctx.Err() // the caller has given up
	}
	if err == nil {
		return sb, nil
	}
	if undoErr := p.undoCreate(ctx, sb, c, before); undoErr != nil {
		err = errors.Join(err, undoErr)
	}
	return nil, err
}

// checkWorkdir returns an error if spec puts something other than the data volume at
// DefaultWorkdir.
func checkWorkdir(spec *atoll.Spec) error {
	if spec.Workdir != "" && !isBelow(atoll.DefaultWorkdir, spec.Workdir) {
		return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "workdir %s: the workspace is in %s; leave workdir empty or use a directory below",
			spec.Workdir, atoll.DefaultWorkdir)
	}
	for _, m := range spec.Mounts {
		if isBelow(atoll.DefaultWorkdir, m.Target) {
			return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "mount target %s: the workspace is in %s; use another target", m.Target, atoll.DefaultWorkdir)
		}
	}
	return nil
}

// undoCreate removes a sandbox that createCopy did not finish, and the volumes that were created
// for it.
func (p *provider) undoCreate(ctx context.Context, sb atoll.Sandbox, spec *atoll.Spec, before []atoll.Volume) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
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
			_ = atoll.RemoveVolume(ctx, p.Provider, projectOf(spec.Project), name) // fails if another sandbox uses the volume
		}
	}
	return nil
}

// unfinishedMark is a file in a work directory that exists until the complete tree has been
// copied. No repository can contain it.
const unfinishedMark = ".git/atoll-unfinished"

// copyTree copies the tree into a sandbox that has never started, unless its work directory has
// other files. It replaces the remains of an earlier attempt, which unfinishedMark reveals. The
// caller must hold the lock of lockCopy.
func (p *provider) copyTree(ctx context.Context, sb atoll.Sandbox, k *record, commit string) error {
	st, err := sb.Status(ctx)
	if err != nil {
		return err
	}
	files, mark := atoll.Files(sb), path.Join(atoll.DefaultWorkdir, unfinishedMark)
	fresh, err := isUntouched(ctx, files, st.Spec.Workdir)
	if err != nil {
		return err
	}
	if !fresh {
		if _, err := files.Stat(ctx, mark); err != nil {
			return ignoreError(err, fs.ErrNotExist) // the files of an earlier sandbox
		}
		if err := clearAttempt(ctx, files, st.Spec.Workdir); err != nil {
			return err
		}
	}
	if err := k.streamTree(ctx, commit, func(r io.Reader) error { return files.ReadTar(ctx, atoll.DefaultWorkdir, r) }); err != nil {
		return err
	}
	return files.Remove(ctx, mark, false)
}

// isUntouched reports whether DefaultWorkdir contains nothing but the sandbox's working
// directory, if that is below.
func isUntouched(ctx context.Context, files atoll.FS, workdir string) (bool, error) {
	for dir := atoll.DefaultWorkdir; ; {
		entries, err := files.List(ctx, dir, false)
		if err != nil || len(entries) == 0 {
			return err == nil, err
		}
		if only := entries[0]; len(entries) > 1 || only.Type != atoll.TypeDirectory || !isBelow(only.Path, workdir) {
			return false, nil
		}
		dir = entries[0].Path
	}
}

// clearAttempt removes everything except the repository, which holds the mark, and whose files
// copyTree replaces.
func clearAttempt(ctx context.Context, files atoll.FS, workdir string) error {
	entries, err := files.List(ctx, atoll.DefaultWorkdir, false)
	if err != nil {
		return err
	}
	for _, f := range entries {
		if f.Name == ".git" {
			continue
		}
		if err := files.Remove(ctx, f.Path, true); ignoreError(err, fs.ErrNotExist) != nil {
			return err
		}
	}
	return files.Mkdir(ctx, workdir, 0o755)
}

func ignoreError(err, one error) error {
	if errors.Is(err, one) {
		return nil
	}
	return err
}

// A sandbox is a sandbox of the wrapped provider, with or without a workspace.
type sandbox struct {
	atoll.SandboxLayer
	p *provider
}

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.Sandbox.Status(ctx)
	return restoreStatus(st), err
}

// Snapshot implements atoll.Snapshotter.
func (s *sandbox) Snapshot(ctx context.Context, opts ...atoll.SnapshotOption) (atoll.Snapshot, error) {
	snap, err := atoll.TakeSnapshot(ctx, s.Sandbox, opts...)
	restoreSpec(&snap.Spec)
	return snap, err
}

// Start implements atoll.Sandbox. If a crash interrupted the check-out of Create, Start finishes
// it.
func (s *sandbox) Start(ctx context.Context) error {
	st, err := s.Sandbox.Status(ctx)
	if err != nil {
		return err
	}
	commit := st.Spec.Note(noteCommit)
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
		if err := s.finishCopy(ctx, &st, commit); err != nil {
			return err
		}
	}
	return s.Sandbox.Start(ctx)
}

func (s *sandbox) finishCopy(ctx context.Context, st *atoll.Status, commit string) error {
	k, err := s.p.store.awaitReady(ctx, workspaceKey{st.Spec.Project, st.Spec.Note(noteName)}, nil)
	if err == nil {
		_, err = k.resolveCommit(ctx, commit, s.p.store.Limit)
	}
	if err == nil {
		err = s.p.copyTree(ctx, s.Sandbox, k, commit)
	}
	return err
}

var (
	_ atoll.Sandbox     = (*sandbox)(nil)
	_ atoll.Snapshotter = (*sandbox)(nil)
)
