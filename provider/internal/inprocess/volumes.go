package inprocess

import (
	"context"
	"errors"
	"io/fs"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
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
	used, err := p.usedVolumes("")
	if err != nil {
		return nil, atoll.E("volumes", project, atoll.KindOf(err), err)
	}
	for i, v := range list {
		list[i].Provider, list[i].InUse = p.opts.Info.Name, used[qualifiedName{v.Project, v.Name}]
	}
	return list, nil
}

// usedVolumes returns the volumes that sandboxes of any program use, except those of the sandbox with
// id except. It reads the records, each of which is written before a volume is created.
func (p *Provider) usedVolumes(except string) (map[qualifiedName]bool, error) {
	ids, err := p.listRecordIDs()
	if err != nil {
		return nil, err
	}
	used := map[qualifiedName]bool{}
	for _, id := range ids {
		r, err := p.readRecord(id)
		if id == except || errors.Is(err, fs.ErrNotExist) { // the record was just removed
			continue
		}
		if err != nil && !errors.Is(err, errDamagedRecord) { // a damaged record still names some volumes
			return nil, err
		}
		used[qualifiedName{r.Spec.Project, volume.DataName(id)}] = true
		for _, m := range r.Spec.Mounts {
			used[qualifiedName{r.Spec.Project, m.Source}] = true
		}
	}
	return used, nil
}

// RemoveVolume implements atoll.VolumeStore.
func (p *Provider) RemoveVolume(ctx context.Context, project, vol string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if project == "" {
		project = atoll.DefaultProject
	}
	return p.removeVolume(project, vol, "")
}

// removeVolume deletes a volume, unless a sandbox other than the one with id except uses it.
func (p *Provider) removeVolume(project, vol, except string) error {
	return p.volumes.Remove(project, vol, func() (bool, error) {
		used, err := p.usedVolumes(except)
		return used[qualifiedName{project, vol}], err
	})
}

// RemoveProject implements atoll.ProjectRemover. It removes the project's sandboxes and volumes.
// Kinds: ErrConflict (another program has sandboxes in the project, whose volumes remain).
func (p *Provider) RemoveProject(ctx context.Context, project string) error {
	return volume.RemoveProject(ctx, p, project)
}
