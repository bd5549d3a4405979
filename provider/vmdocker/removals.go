package vmdocker

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A removal records that a sandbox was removed while its machine was off. The sandbox no longer
// exists for any program; its container is removed when the machine runs again, before it is
// used. So no machine has to be started to remove a sandbox.
type removal struct {
	Status  atoll.Status `json:"status"`  // as it was; only id and project if the sandbox had been removed before
	Volumes bool         `json:"volumes"` // remove its data volume, too
}

// isOf reports whether this very sandbox was removed, and not another one with its id.
func (r removal) isOf(st atoll.Status) bool {
	return r.Status.ID == st.ID && r.Status.Spec.Project == st.Spec.Project && r.Status.Created.Equal(st.Created)
}

// removals lists the removals of a project, or of all projects.
type removals []removal

func (l removals) containsSandbox(st atoll.Status) bool {
	for _, r := range l {
		if r.isOf(st) {
			return true
		}
	}
	return false
}

// ownsVolume reports whether one of the removals includes the volume.
func (l removals) ownsVolume(v atoll.Volume) bool {
	for _, r := range l {
		if r.Volumes && v.Sandbox == r.Status.ID && v.Project == r.Status.Spec.Project {
			return true
		}
	}
	return false
}

func (n noteStore) removalsDir() string { return filepath.Join(string(n), "removed") }

// removalPath returns the path of a sandbox's removal. All are in one directory, so that one
// watch is enough.
func (n noteStore) removalPath(project, id string) string {
	return filepath.Join(n.removalsDir(), project+"."+id+".json")
}

// listRemovals lists the removals of a project; "" means all projects.
func (n noteStore) listRemovals(project string) (list removals, err error) {
	entries, err := os.ReadDir(n.removalsDir())
	for _, e := range entries {
		of, _, _ := strings.Cut(e.Name(), ".")
		if filepath.Ext(e.Name()) != ".json" || project != "" && project != of {
			continue
		}
		r, err := n.readRemoval(filepath.Join(n.removalsDir(), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // done meanwhile
		}
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, err
}

func (n noteStore) readRemoval(path string) (r removal, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

// isRemoved reports whether the sandbox was removed and its container still exists.
func (n noteStore) isRemoved(st atoll.Status) (bool, error) {
	r, err := n.readRemoval(n.removalPath(st.Spec.Project, st.ID))
	return err == nil && r.isOf(st), ignoreNotExist(err)
}

// checkRemoved returns an error if the sandbox was removed and its container still exists.
// Kinds: ErrNotFound.
func (p *Provider) checkRemoved(op, project, id string) error {
	_, err := os.Stat(p.notes.removalPath(project, id))
	if err == nil {
		_, err = p.notes.findStatus(id)
	}
	if err = ignoreNotExist(err); err != nil {
		return atoll.E(op, id, atoll.KindOf(err), err)
	}
	return nil
}

// lockRemovals locks the removals of a project, to change them or to do them. Without the lock,
// a removal might be done twice, the second time to another sandbox with the same id.
func (n noteStore) lockRemovals(ctx context.Context, project string) (*fsutil.Lock, error) {
	if err := os.MkdirAll(n.sandboxesDir(project), 0o700); err != nil {
		return nil, err
	}
	return fsutil.AwaitLock(ctx, filepath.Join(n.projectDir(project), "removals.lock"))
}

// removeLater removes a sandbox whose machine is off. The sandbox is gone as soon as
// removeLater has written one file.
func (p *Provider) removeLater(ctx context.Context, st atoll.Status, volumes bool) error {
	lock, err := p.notes.lockRemovals(ctx, st.Spec.Project)
	if err != nil {
		return err
	}
	defer lock.Release()
	path := p.notes.removalPath(st.Spec.Project, st.ID)
	r, err := p.notes.readRemoval(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil && st.Created.IsZero() {
		if left, err := p.hasDataVolume(st); err != nil || !left {
			return err
		}
	}
	if err != nil || !st.Created.IsZero() {
		r.Status = st
	}
	r.Volumes = r.Volumes || volumes
	if err := fsutil.SyncJSON(path, r); err != nil {
		return err
	}
	p.watch.publishRemoved(r.Status)
	return p.notes.removeStatusOf(r.Status)
}

// hasDataVolume reports whether a sandbox that was removed before has left a data volume.
func (p *Provider) hasDataVolume(st atoll.Status) (bool, error) {
	var volumes []atoll.Volume
	err := p.notes.readKind(st.Spec.Project, kindVolumes, &volumes)
	return slices.ContainsFunc(volumes, func(v atoll.Volume) bool { return v.Sandbox == st.ID }), err
}

// finishRemovals does the removals of a project in its engine. It runs before any call gets the
// engine to create or change a sandbox, so names and ids are free. If the engine refuses one,
// finishRemovals logs that, and the next use tries again. Kinds: ErrUnavailable.
func (p *Provider) finishRemovals(ctx context.Context, e *engine) error {
	list, err := p.notes.listRemovals(e.project)
	if err != nil || len(list) == 0 {
		return err
	}
	lock, err := p.notes.lockRemovals(ctx, e.project)
	if err != nil {
		return err
	}
	defer lock.Release()
	if list, err = p.notes.listRemovals(e.project); err != nil {
		return err
	}
	for _, r := range list {
		err := p.finishRemoval(ctx, e, r)
		if ctx.Err() != nil || atoll.KindOf(err) == atoll.ErrUnavailable {
			return err
		}
		if err != nil {
			p.log.Error("remove", "sandbox", r.Status.ID, "err", err)
		}
	}
	return p.learnVolumes(ctx, e)
}

// finishRemoval does one removal, and deletes its record last.
func (p *Provider) finishRemoval(ctx context.Context, e *engine, r removal) error {
	sb := e.docker.Sandbox(r.Status.ID)
	st, err := sb.Status(ctx)
	switch kind := atoll.KindOf(err); {
	case err != nil && kind != atoll.ErrNotFound:
		return err
	case err == nil && !r.isOf(st): // another sandbox has its id now
	case r.Volumes:
		err = sb.Remove(ctx, atoll.RemoveVolumes())
	default:
		err = sb.Remove(ctx)
	}
	if err == nil {
		err = p.notes.removeStatusOf(r.Status) // another program may have recorded it meanwhile
	}
	if err != nil {
		return err
	}
	return ignoreNotExist(os.Remove(p.notes.removalPath(e.project, r.Status.ID)))
}
