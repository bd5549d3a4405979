package remote

import (
	"context"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// A VolumeKey names a volume.
type VolumeKey struct{ Project, Name string }

// UsedVolumes returns the volumes of sandboxes, running or stopped.
func UsedVolumes[O any](records []*Record[O]) map[VolumeKey]bool {
	used := map[VolumeKey]bool{}
	for _, r := range records {
		spec := &r.Note.Spec
		if r.Note.Volume {
			used[VolumeKey{spec.Project, volume.DataName(r.ID)}] = true
		}
		for _, m := range spec.Mounts {
			if m.Type == atoll.MountVolume {
				used[VolumeKey{spec.Project, m.Source}] = true
			}
		}
	}
	return used
}

// Volumes implements atoll.VolumeStore.
func (p Provider[O]) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	e := p.e
	if e.Ephemeral {
		return nil, atoll.E("volumes", e.Name, atoll.ErrUnsupported, nil)
	}
	if err := e.backend.Open(ctx, "volumes"); err != nil {
		return nil, err
	}
	used, err := e.backend.UsedVolumes(ctx)
	if err != nil {
		return nil, e.backend.WrapError(ctx, "volumes", project, err)
	}
	all, err := e.backend.ListVolumes(ctx)
	if err != nil {
		return nil, e.backend.WrapError(ctx, "volumes", project, err)
	}
	var list []atoll.Volume
	for _, v := range all {
		if project == "" || v.Project == project {
			v.Provider, v.InUse = e.Name, used[VolumeKey{v.Project, v.Name}]
			list = append(list, v)
		}
	}
	slices.SortFunc(list, func(a, b atoll.Volume) int { return strings.Compare(a.Project+"/"+a.Name, b.Project+"/"+b.Name) })
	return list, nil
}

// RemoveVolume implements atoll.VolumeStore.
func (p Provider[O]) RemoveVolume(ctx context.Context, project, name string) error {
	e := p.e
	if e.Ephemeral {
		return atoll.E("remove volume", name, atoll.ErrUnsupported, nil)
	}
	if project == "" {
		project = atoll.DefaultProject
	}
	if err := e.backend.Open(ctx, "remove volume"); err != nil {
		return err
	}
	return e.backend.WrapError(ctx, "remove volume", name, e.backend.DeleteVolume(ctx, project, name))
}

// SandboxOfVolume returns the id of the sandbox whose data volume has that name; "" if the name
// is that of another volume.
func SandboxOfVolume(name string) string {
	id, err := atoll.NormalizeID(strings.TrimPrefix(name, "data-"))
	if err != nil || id == "" || volume.DataName(id) != name {
		return ""
	}
	return id
}

// LostVolumeError returns the error for a sandbox whose data volume, called name at the service,
// was deleted.
func LostVolumeError(id, name string) error {
	return atoll.Errorf("start", id, atoll.ErrUnavailable, "its data volume %s was deleted by somebody else: its files are lost; remove the sandbox and create it again", name)
}

// NoVolumeError returns the error for a volume that does not exist.
func NoVolumeError(project, name string) error {
	return atoll.Errorf("remove volume", name, atoll.ErrNotExist, "no volume %q in project %q", name, project)
}

// VolumeInUseError returns the error for a volume that a sandbox mounts.
func VolumeInUseError(name string) error {
	return atoll.Errorf("remove volume", name, atoll.ErrConflict, "a sandbox mounts it")
}
