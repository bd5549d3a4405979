package supervised

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// A snapshotRecord is the content of the file statedir.SnapshotMeta.
type snapshotRecord struct {
	Snapshot atoll.Snapshot  `json:"snapshot"`
	Record   statedir.Record `json:"record"` // of the sandbox, for its image
}

// Snapshot implements atoll.Snapshotter.
func (s *sandbox) Snapshot(ctx context.Context, opts ...atoll.SnapshotOption) (snap atoll.Snapshot, err error) {
	err = s.p.withLock(ctx, "snapshot", s.id, func(rec *statedir.Record) error {
		if !isLive(rec.Status.State) {
			return atoll.E("snapshot", s.id, atoll.ErrStopped, nil)
		}
		if snap, err = s.p.takeSnapshot(ctx, rec, opts...); err == nil {
			return nil
		}
		if dropErr := s.p.dir.DropSnapshots(s.id); dropErr != nil { // a sweep tries again
			s.p.log.Error("snapshot: undo", "sandbox", s.id, "err", dropErr)
		}
		return s.explainError(ctx, "snapshot", err)
	})
	return snap, err
}

// takeSnapshot has the supervisor write the sandbox's state, and adds what is needed to
// start from it. The caller holds the sandbox's lock.
func (p *Provider) takeSnapshot(ctx context.Context, rec *statedir.Record, opts ...atoll.SnapshotOption) (atoll.Snapshot, error) {
	id := rec.Status.ID
	taken, err := atoll.TakeSnapshot(ctx, p.clientFor(id).remoteSandbox(), opts...)
	if err != nil {
		return atoll.Snapshot{}, err
	}
	dir := p.dir.NewSnapshot(id, taken.ID)
	size, err := treeSize(dir)
	snap := atoll.Snapshot{ID: taken.ID, Provider: p.opts.Info.Name, Sandbox: id, Spec: rec.Status.Spec, Version: p.opts.Info.Version, Size: size, Created: time.Now()}
	_, workErr := os.Lstat(filepath.Join(dir, statedir.SnapshotWork))
	snap.Work = workErr == nil
	if err == nil {
		err = fsutil.WriteJSON(filepath.Join(dir, statedir.SnapshotMeta), snapshotRecord{snap, *rec})
	}
	if err == nil {
		err = p.dir.FinishSnapshot(id, taken.ID)
	}
	if err != nil {
		return atoll.Snapshot{}, atoll.E("snapshot", id, diskKind(err), err)
	}
	return snap, nil
}

func treeSize(dir string) (size atoll.Bytes, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) { // a directory that its owner inside has closed
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			size += atoll.Bytes(info.Size())
		}
		return err
	})
	return size, err
}

// Snapshots implements atoll.SnapshotStore, oldest first.
func (p *Provider) Snapshots(context.Context) ([]atoll.Snapshot, error) {
	if !p.opts.Info.Caps.Snapshot {
		return nil, atoll.E("snapshots", "", atoll.ErrUnsupported, nil)
	}
	ids, err := p.dir.SnapshotIDs()
	if err != nil {
		return nil, atoll.E("snapshots", "", atoll.ErrInternal, err)
	}
	list := make([]atoll.Snapshot, 0, len(ids))
	for _, id := range ids {
		if r, err := p.readSnapshot(id); err == nil { // else it was removed meanwhile
			list = append(list, r.Snapshot)
		}
	}
	slices.SortFunc(list, func(a, b atoll.Snapshot) int { return a.Created.Compare(b.Created) })
	return list, nil
}

func (p *Provider) readSnapshot(id string) (*snapshotRecord, error) {
	n, err := atoll.NormalizeID(id)
	if err != nil || n == "" {
		return nil, fs.ErrNotExist
	}
	data, err := os.ReadFile(filepath.Join(p.dir.Snapshot(n), statedir.SnapshotMeta))
	if err != nil {
		return nil, err
	}
	var r snapshotRecord
	err = json.Unmarshal(data, &r)
	r.Snapshot.Provider = p.opts.Info.Name
	return &r, err
}

// RemoveSnapshot implements atoll.SnapshotStore.
func (p *Provider) RemoveSnapshot(_ context.Context, id string) error {
	if !p.opts.Info.Caps.Snapshot {
		return atoll.E("remove snapshot", id, atoll.ErrUnsupported, nil)
	}
	n, err := atoll.NormalizeID(id)
	if err != nil || n == "" {
		return noSnapshot("remove snapshot", id, id)
	}
	err = p.retryAsOwner(func() error { return p.dir.RemoveSnapshot(n) })
	if errors.Is(err, fs.ErrNotExist) {
		return noSnapshot("remove snapshot", id, id)
	}
	if err != nil {
		return atoll.E("remove snapshot", id, diskKind(err), err)
	}
	return nil
}

func noSnapshot(op, id, snapshot string) error {
	return atoll.Errorf(op, id, atoll.ErrNotExist, "no snapshot %q", snapshot)
}

// fromSnapshot copies the image, and what else decides whether it can be restored, from the
// snapshot that the spec names.
func (c *creation) fromSnapshot() error {
	st := &c.rec.Status
	r, err := c.p.readSnapshot(st.Spec.Snapshot)
	if errors.Is(err, fs.ErrNotExist) {
		return noSnapshot("create", st.ID, st.Spec.Snapshot)
	}
	if err != nil {
		return atoll.Errorf("create", st.ID, atoll.ErrInternal, "snapshot %s: %w", st.Spec.Snapshot, err)
	}
	if err := c.p.opts.Backend.Restores(&r.Snapshot, &st.Spec); err != nil {
		return err
	}
	st.Spec.Snapshot, c.work = r.Snapshot.ID, r.Snapshot.Work
	st.Image, c.rec.Image, c.rec.Digest = r.Record.Status.Image, r.Record.Image, r.Record.Digest
	c.rec.Env, c.rec.User = r.Record.Env, r.Record.User
	return nil
}
