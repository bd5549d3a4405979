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
	used, err := p.used("")
	if err != nil {
		return nil, atoll.E("volumes", project, atoll.KindOf(err), err)
	}
	for i, v := range list {
		list[i].Provider, list[i].InUse = p.opts.Info.Name, used[name{v.Project, v.Name}]
	}
	return list, nil
}

// used names the volumes that sandboxes have, those of other programs too, but
// for one's. It goes by the records: one is written before a volume is made.
func (p *Provider) used(but string) (map[name]bool, error) {
	ids, err := p.recorded()
	if err != nil {
		return nil, err
	}
	used := map[name]bool{}
	for _, id := range ids {
		r, err := p.read(id)
		if id == but || errors.Is(err, fs.ErrNotExist) { // just removed
			continue
		}
		if err != nil && !errors.Is(err, errDamaged) { // that says what it can
			return nil, err
		}
		used[name{r.Spec.Project, volume.DataName(id)}] = true
		for _, m := range r.Spec.Mounts {
			used[name{r.Spec.Project, m.Source}] = true
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

// removeVolume deletes a volume that no sandbox uses, but for one.
func (p *Provider) removeVolume(project, vol, but string) error {
	return p.volumes.Remove(project, vol, func() (bool, error) {
		used, err := p.used(but)
		return used[name{project, vol}], err
	})
}

// RemoveProject implements atoll.ProjectRemover: sandboxes and volumes. Kinds:
// ErrConflict (another program has sandboxes in the project, whose volumes stay).
func (p *Provider) RemoveProject(ctx context.Context, project string) error {
	return volume.RemoveProject(ctx, p, project)
}
