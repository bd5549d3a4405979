package inprocess

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// A Place describes the files of a sandbox to its processes. They see the machine's own directories:
// the directory that callers call Prefix is Dir to processes.
type Place struct {
	ID     string
	Spec   *atoll.Spec // with defaults; read-only
	Prefix string      // DefaultWorkdir, or Spec.Workdir if that is not below DefaultWorkdir
	Dir    string      // the data volume
	Linked []string    // the mounted volumes, to which Dir has links
}

func newPlace(spec *atoll.Spec, store volume.Store) Place {
	prefix := path.Clean(spec.Workdir)
	if _, ok := dirfs.Below(atoll.DefaultWorkdir, prefix); ok {
		prefix = atoll.DefaultWorkdir
	}
	pl := Place{ID: spec.ID, Spec: spec, Prefix: prefix, Dir: store.Path(spec.Project, volume.DataName(spec.ID))}
	for _, m := range spec.Mounts {
		pl.Linked = append(pl.Linked, store.Path(spec.Project, m.Source))
	}
	return pl
}

// HostPath returns the machine's path of a directory as a caller names it. A relative directory is
// below the work directory; the empty one is the work directory itself.
func (pl *Place) HostPath(dir string) string {
	if !path.IsAbs(dir) {
		dir = path.Join(pl.Spec.Workdir, dir)
	}
	dir = path.Clean(dir)
	if rel, ok := dirfs.Below(pl.Prefix, dir); ok {
		return filepath.Join(pl.Dir, rel)
	}
	return dir
}

// missingVolumes returns the names of mounted volumes that do not exist.
func (pl *Place) missingVolumes(store volume.Store) []string {
	var names []string
	for _, m := range pl.Spec.Mounts {
		if !store.Has(pl.Spec.Project, m.Source) {
			names = append(names, m.Source)
		}
	}
	return names
}

// prepareVolumes creates the data volume, the work directory and the mounted volumes, unless they
// exist. It calls step before each.
func (pl *Place) prepareVolumes(store volume.Store, step func(name string) error) error {
	if err := step("data volume"); err != nil {
		return err
	}
	if err := store.Make(pl.Spec.Project, volume.DataName(pl.ID)); err != nil {
		return err
	}
	if err := step("work directory"); err != nil {
		return err
	}
	root, err := os.OpenRoot(pl.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if rel, _ := dirfs.Below(pl.Prefix, path.Clean(pl.Spec.Workdir)); rel != "." {
		if err := root.MkdirAll(rel, 0o755); err != nil {
			return err
		}
	}
	for _, m := range pl.Spec.Mounts {
		if err := pl.linkVolume(root, store, m, step); err != nil {
			return err
		}
	}
	return nil
}

// linkVolume creates a symbolic link to a volume at its mount target. A program without privileges or
// a mount namespace cannot mount it.
func (pl *Place) linkVolume(root *os.Root, store volume.Store, m atoll.Mount, step func(name string) error) error {
	if err := step("volume"); err != nil {
		return err
	}
	if err := store.Make(pl.Spec.Project, m.Source); err != nil {
		return err
	}
	rel, _ := dirfs.Below(pl.Prefix, path.Clean(m.Target))
	if err := root.MkdirAll(path.Dir(rel), 0o755); err != nil {
		return err
	}
	info, err := root.Lstat(rel)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0: // left by an earlier sandbox with this id
		if err := root.Remove(rel); err != nil {
			return err
		}
	default:
		return atoll.Errorf("create", pl.ID, atoll.ErrInvalid, "mount target %q already exists on the data volume", m.Target)
	}
	if err := step("mount"); err != nil {
		return err
	}
	return root.Symlink(store.Path(pl.Spec.Project, m.Source), rel)
}

// unlinkVolumes removes the links that linkVolume created, from a data volume that may be kept.
func (pl *Place) unlinkVolumes() {
	root, err := os.OpenRoot(pl.Dir)
	if err != nil {
		return // the data volume is gone, and the links with it
	}
	defer root.Close()
	for _, m := range pl.Spec.Mounts {
		rel, _ := dirfs.Below(pl.Prefix, path.Clean(m.Target))
		if info, err := root.Lstat(rel); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			_ = root.Remove(rel) // a dangling link is harmless
		}
	}
}

// openFiles returns the sandbox's files. The caller must call closeAll afterwards.
func (pl *Place) openFiles(store volume.Store) (files atoll.FS, closeAll func(), err error) {
	var open []*dirfs.FS
	closeAll = func() {
		for _, f := range open {
			_ = f.Close() // a directory handle; nothing to flush
		}
	}
	add := func(prefix, dir string) error {
		f, err := dirfs.New(prefix, dir, dirfs.Options{Workdir: path.Clean(pl.Spec.Workdir), UID: -1, GID: -1})
		if err == nil {
			open = append(open, f)
		}
		return err
	}
	err = add(pl.Prefix, pl.Dir)
	for _, m := range pl.Spec.Mounts {
		if err == nil {
			err = add(path.Clean(m.Target), store.Path(pl.Spec.Project, m.Source))
		}
	}
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return dirfs.Join(open[0], open[1:]...), closeAll, nil
}
