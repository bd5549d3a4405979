//go:build linux

package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/disk"
	"github.com/seed46cd37a8/atoll/internal/kept/statedir"
)

// snapshotRecord is what statedir.SnapshotMeta holds.
type snapshotRecord struct {
	Snapshot atoll.Snapshot  `json:"snapshot"`
	Record   statedir.Record `json:"record"` // of the sandbox, for its image
}

// Snapshot implements atoll.Snapshotter.
func (s *sandbox) Snapshot(ctx context.Context) (snap atoll.Snapshot, err error) {
	err = s.p.locked(ctx, "snapshot", s.id, func(rec *statedir.Record) error {
		if !live(rec.Status.State) {
			return atoll.E("snapshot", s.id, atoll.ErrStopped, nil)
		}
		if snap, err = s.p.snapshot(ctx, rec); err == nil {
			return nil
		}
		if dropErr := s.p.dir.DropSnapshots(s.id); dropErr != nil { // a sweep tries again
			s.p.log.Error("snapshot: undo", "sandbox", s.id, "err", dropErr)
		}
		return s.explain(ctx, "snapshot", err)
	})
	return snap, err
}

// snapshot has the keeper write a checkpoint and completes it with what is
// needed to start from it. The caller holds the sandbox's lock.
func (p *Provider) snapshot(ctx context.Context, rec *statedir.Record) (atoll.Snapshot, error) {
	id := rec.Status.ID
	taken, err := atoll.TakeSnapshot(ctx, p.keeper(id).sandbox())
	if err != nil {
		return atoll.Snapshot{}, err
	}
	dir := p.dir.NewSnapshot(id, taken.ID)
	size, err := treeSize(dir)
	snap := atoll.Snapshot{ID: taken.ID, Provider: p.info.Name, Sandbox: id, Spec: rec.Status.Spec, Version: Version(), Size: size, Created: time.Now()}
	if err == nil {
		err = disk.WriteJSON(filepath.Join(dir, statedir.SnapshotMeta), snapshotRecord{snap, *rec})
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
	ids, err := p.dir.SnapshotIDs()
	if err != nil {
		return nil, atoll.E("snapshots", "", atoll.ErrInternal, err)
	}
	list := make([]atoll.Snapshot, 0, len(ids))
	for _, id := range ids {
		if r, err := p.readSnapshot(id); err == nil { // gone meanwhile
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
	r.Snapshot.Provider = p.info.Name
	return &r, err
}

// RemoveSnapshot implements atoll.SnapshotStore.
func (p *Provider) RemoveSnapshot(_ context.Context, id string) error {
	n, err := atoll.NormalizeID(id)
	if err != nil || n == "" {
		return noSnapshot("remove snapshot", id, id)
	}
	err = p.dir.RemoveSnapshot(n)
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

// fromSnapshot takes the image, and what else decides whether memory can be
// restored, from the snapshot that the spec names.
func (c *creation) fromSnapshot() error {
	st := &c.rec.Status
	r, err := c.p.readSnapshot(st.Spec.Snapshot)
	if errors.Is(err, fs.ErrNotExist) {
		return noSnapshot("create", st.ID, st.Spec.Snapshot)
	}
	if err != nil {
		return atoll.Errorf("create", st.ID, atoll.ErrInternal, "snapshot %s: %w", st.Spec.Snapshot, err)
	}
	if r.Snapshot.Version != Version() {
		return atoll.Errorf("create", st.ID, atoll.ErrUnsupported,
			"snapshot %s was taken with gVisor %s and this is %s: memory can only be restored by the same version",
			r.Snapshot.ID, r.Snapshot.Version, Version())
	}
	if !sameShape(&r.Snapshot.Spec, &st.Spec) {
		return atoll.Errorf("create", st.ID, atoll.ErrInvalid,
			"snapshot %s was taken with other mounts, or another read_only_root: name the same mount targets", r.Snapshot.ID)
	}
	st.Spec.Snapshot = r.Snapshot.ID
	st.Image, c.rec.Image, c.rec.Digest = r.Record.Status.Image, r.Record.Image, r.Record.Digest
	c.rec.Env, c.rec.User = r.Record.Env, r.Record.User
	return nil
}

// sameShape reports whether memory that was saved with one spec has the same
// mounts around it with the other; what is mounted may differ.
func sameShape(a, b *atoll.Spec) bool {
	targets := func(s *atoll.Spec) map[string]string {
		m := map[string]string{}
		for _, mount := range s.Mounts {
			m[path.Clean(mount.Target)] = fmt.Sprint(mount.Type == atoll.MountTmpfs, mount.ReadOnly, mount.Size)
		}
		return m
	}
	return a.ReadOnlyRoot == b.ReadOnlyRoot && maps.Equal(targets(a), targets(b))
}
