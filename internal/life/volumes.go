package life

import (
	"context"
	"errors"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/volume"
)

// Volumes implements atoll.VolumeStore.
func (p *Provider) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	list, err := p.volumes.List(project)
	if err != nil {
		return nil, err
	}
	used := p.used(nil)
	for i, v := range list {
		list[i].InUse = used[name{v.Project, v.Name}]
	}
	return list, nil
}

// used names the volumes that sandboxes have, but for one's.
func (p *Provider) used(but *box) map[name]bool {
	used := map[name]bool{}
	for _, b := range p.all() {
		if b == but {
			continue
		}
		project := b.place.Spec.Project
		used[name{project, volume.DataName(b.id)}] = true
		for _, m := range b.place.Spec.Mounts {
			used[name{project, m.Source}] = true
		}
	}
	return used
}

// RemoveVolume implements atoll.VolumeStore.
func (p *Provider) RemoveVolume(ctx context.Context, project, vol string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if project == "" {
		project = atoll.DefaultProject
	}
	return p.removeVolume(project, vol, nil)
}

// removeVolume deletes a volume that no sandbox uses, but for one.
func (p *Provider) removeVolume(project, vol string, but *box) error {
	return p.volumes.Remove(project, vol, func() (bool, error) { return p.used(but)[name{project, vol}], nil })
}

// RemoveProject implements atoll.ProjectRemover: sandboxes and volumes.
func (p *Provider) RemoveProject(ctx context.Context, project string) error {
	var errs []error
	for _, b := range p.all() {
		if b.place.Spec.Project == project {
			errs = append(errs, b.Remove(ctx, atoll.RemoveVolumes()))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	list, err := p.volumes.List(project)
	for _, v := range list {
		if rerr := p.removeVolume(v.Project, v.Name, nil); err == nil && atoll.KindOf(rerr) != atoll.ErrNotExist {
			err = rerr
		}
	}
	return err
}
