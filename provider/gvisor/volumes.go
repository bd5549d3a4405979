//go:build linux

package gvisor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/statedir"
)

// Volumes implements atoll.VolumeStore.
func (p *Provider) Volumes(_ context.Context, project string) ([]atoll.Volume, error) {
	used, err := p.volumesInUse()
	if err != nil {
		return nil, err
	}
	pattern := "*"
	if project != "" {
		if !atoll.ValidName(project) {
			return nil, atoll.Errorf("volumes", project, atoll.ErrInvalid, "no valid project name")
		}
		pattern = project
	}
	paths, err := filepath.Glob(p.dir.Volume(pattern, "*"))
	if err != nil {
		return nil, atoll.E("volumes", project, atoll.ErrInternal, err)
	}
	var list []atoll.Volume
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || !info.IsDir() {
			continue // removed meanwhile
		}
		v := atoll.Volume{Name: filepath.Base(path), Project: filepath.Base(filepath.Dir(path)), Created: info.ModTime()}
		if id, ok := strings.CutPrefix(v.Name, statedir.DataVolume("")); ok {
			if n, err := atoll.NormalizeID(id); err == nil && n == id {
				v.Sandbox = id
			}
		}
		v.InUse = used[path]
		list = append(list, v)
	}
	return list, nil
}

// volumesInUse returns the directories of the volumes that sandboxes mount.
func (p *Provider) volumesInUse() (map[string]bool, error) {
	all, err := p.List(context.Background(), atoll.Filter{})
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, st := range all {
		used[p.dir.Volume(st.Spec.Project, statedir.DataVolume(st.ID))] = true
		for _, m := range st.Spec.Mounts {
			if m.Type == atoll.MountVolume {
				used[p.dir.Volume(st.Spec.Project, m.Source)] = true
			}
		}
	}
	return used, nil
}

// RemoveVolume implements atoll.VolumeStore.
func (p *Provider) RemoveVolume(_ context.Context, project, name string) error {
	if project == "" {
		project = atoll.DefaultProject
	}
	if !atoll.ValidName(project) || !atoll.ValidName(name) {
		return atoll.Errorf("remove volume", name, atoll.ErrInvalid, "no valid name")
	}
	path := p.dir.Volume(project, name)
	if !exists(path) {
		return atoll.Errorf("remove volume", name, atoll.ErrNotExist, "no volume %q in project %q", name, project)
	}
	used, err := p.volumesInUse()
	if err != nil {
		return err
	}
	if used[path] {
		return atoll.Errorf("remove volume", name, atoll.ErrConflict, "volume %q is in use by a sandbox: remove that first", name)
	}
	if err := os.RemoveAll(path); err != nil {
		return atoll.E("remove volume", name, atoll.ErrInternal, err)
	}
	return nil
}

// RemoveProject implements atoll.ProjectRemover: sandboxes, volumes and names.
func (p *Provider) RemoveProject(ctx context.Context, project string) error {
	if !atoll.ValidName(project) {
		return atoll.Errorf("remove project", project, atoll.ErrInvalid, "no valid project name")
	}
	all, err := p.List(ctx, atoll.Filter{Project: project})
	if err != nil {
		return err
	}
	for _, st := range all {
		if err := (&sandbox{p, st.ID}).Remove(ctx, atoll.RemoveVolumes()); err != nil {
			return err
		}
	}
	if err := p.dir.RemoveProject(project); err != nil {
		return atoll.E("remove project", project, atoll.ErrInternal, err)
	}
	return nil
}

// removeDataVolumes deletes the data volume that a removed sandbox has left,
// whatever its project was.
func (p *Provider) removeDataVolumes(id string) error {
	paths, err := filepath.Glob(p.dir.Volume("*", statedir.DataVolume(id)))
	if err != nil {
		return atoll.E("remove", id, atoll.ErrInternal, err)
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, os.RemoveAll(path))
	}
	if err := errors.Join(errs...); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return atoll.E("remove", id, atoll.ErrInternal, err)
	}
	return nil
}
