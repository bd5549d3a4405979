package supervised

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// Volumes implements atoll.VolumeStore.
func (p *Provider) Volumes(_ context.Context, project string) ([]atoll.Volume, error) {
	if project != "" && !atoll.ValidName(project) {
		return nil, atoll.Errorf("volumes", project, atoll.ErrInvalid, "not a valid project name")
	}
	list, err := p.dir.Volumes().List(project)
	if err != nil {
		return nil, err
	}
	used, err := p.volumesInUse()
	if err != nil {
		return nil, err
	}
	for i, v := range list {
		list[i].Provider, list[i].InUse = p.opts.Info.Name, used[p.dir.Volume(v.Project, v.Name)]
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

// warnOfSharedVolumes warns of volumes that this sandbox and another live one can write to: each
// has a kernel of its own, which does not see the file locks of the other.
func (p *Provider) warnOfSharedVolumes(st *atoll.Status) {
	written := writtenVolumes(&st.Spec)
	if len(written) == 0 {
		return
	}
	all, err := p.List(context.Background(), atoll.Filter{Project: st.Spec.Project})
	if err != nil {
		p.log.Debug("volumes", "err", err)
		return
	}
	for _, other := range all {
		if other.ID == st.ID || !isLive(other.State) {
			continue
		}
		for _, name := range writtenVolumes(&other.Spec) {
			if slices.Contains(written, name) {
				p.log.Warn(fmt.Sprintf("volume %s: sandbox %s writes to it, too, and file locks do not exclude each other there: mount it with :ro in one of them, or let one program have the lock for all",
					name, cmp.Or(other.Spec.Name, other.ID)))
				return // one warning is enough
			}
		}
	}
}

// writtenVolumes returns the names of the volumes that a sandbox can write to.
func writtenVolumes(spec *atoll.Spec) (names []string) {
	for _, m := range spec.Mounts {
		if m.Type == atoll.MountVolume && !m.ReadOnly {
			names = append(names, m.Source)
		}
	}
	return names
}

// RemoveVolume implements atoll.VolumeStore.
func (p *Provider) RemoveVolume(_ context.Context, project, name string) error {
	if project == "" {
		project = atoll.DefaultProject
	}
	if !atoll.ValidName(project) || !atoll.ValidName(name) {
		return atoll.Errorf("remove volume", name, atoll.ErrInvalid, "not a valid project or volume name")
	}
	return p.removeVolume(project, name)
}

// removeVolume deletes a volume unless a sandbox uses it. A sandbox that is being made has
// its record before it makes volumes.
func (p *Provider) removeVolume(project, name string) error {
	return p.retryAsOwner(func() error {
		return p.dir.Volumes().Remove(project, name, func() (bool, error) {
			used, err := p.volumesInUse()
			return used[p.dir.Volume(project, name)], err
		})
	})
}

// RemoveProject implements atoll.ProjectRemover: sandboxes, volumes and names.
func (p *Provider) RemoveProject(ctx context.Context, project string) error {
	if err := volume.RemoveProject(ctx, p, project); err != nil {
		return err
	}
	if err := p.dir.DropNames(project); err != nil {
		return atoll.E("remove project", project, atoll.KindOf(err), err)
	}
	return nil
}

// removeDataVolumes deletes the data volumes of a removed sandbox in all projects, unless a
// sandbox with that id exists again.
func (p *Provider) removeDataVolumes(id string) error {
	all, err := p.dir.Volumes().List("")
	if err != nil {
		return atoll.E("remove", id, atoll.ErrInternal, err)
	}
	var errs []error
	for _, v := range all {
		if v.Sandbox != id {
			continue
		}
		err := p.retryAsOwner(func() error {
			return p.dir.Volumes().Remove(v.Project, v.Name, func() (bool, error) { return p.dir.Known(id), nil })
		})
		if atoll.KindOf(err) != atoll.ErrNotExist {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return atoll.E("remove", id, atoll.KindOf(err), err)
	}
	return nil
}
