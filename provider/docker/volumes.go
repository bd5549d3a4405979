package docker

import (
	"context"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	enginevolume "github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// Volumes implements atoll.VolumeStore.
func (p *Provider) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	found, err := p.labelledVolumes(ctx, labelProject, project)
	if err != nil {
		return nil, p.wrapError(ctx, "volumes", "", err)
	}
	used, err := p.usedVolumes(ctx)
	if err != nil {
		return nil, err
	}
	var list []atoll.Volume
	for _, v := range found {
		vol := atoll.Volume{Provider: info.Name, Project: v.Labels[labelProject], Name: v.Labels[labelVolume], InUse: used[v.Name], Created: parseTime(v.CreatedAt)}
		if id := v.Labels[labelSession]; id != "" {
			vol.Name, vol.Sandbox = volume.DataName(id), id
		}
		vol.Cache = vol.Name == atoll.CacheVolume
		if vol.Name != "" {
			list = append(list, vol)
		}
	}
	slices.SortFunc(list, func(a, b atoll.Volume) int {
		return strings.Compare(a.Project+"/"+a.Name, b.Project+"/"+b.Name)
	})
	return list, nil
}

// labelledVolumes returns this server's volumes that have a label, with that value, or with any
// if value is "". It filters again, because Podman returns volumes with any one of several
// labels.
func (p *Provider) labelledVolumes(ctx context.Context, label, value string) ([]enginevolume.Volume, error) {
	filters := client.Filters{}.Add("label", labelOwner+"="+string(p.names))
	if value != "" {
		filters = filters.Add("label", label+"="+value)
	} else {
		filters = filters.Add("label", label)
	}
	found, err := p.engine.VolumeList(ctx, client.VolumeListOptions{Filters: filters})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found.Items, func(v enginevolume.Volume) bool {
		has, ok := v.Labels[label]
		return v.Labels[labelOwner] != string(p.names) || !ok || value != "" && has != value
	}), nil
}

// usedVolumes returns the names of the volumes that sandboxes mount, running or not.
func (p *Provider) usedVolumes(ctx context.Context) (map[string]bool, error) {
	found, err := p.engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: p.names.selectOwn()})
	if err != nil {
		return nil, p.wrapError(ctx, "volumes", "", err)
	}
	used := map[string]bool{}
	for _, c := range found.Items {
		for _, m := range c.Mounts {
			used[m.Name] = true
		}
	}
	return used, nil
}

// RemoveVolume implements atoll.VolumeStore.
func (p *Provider) RemoveVolume(ctx context.Context, project, name string) error {
	if project == "" {
		project = atoll.DefaultProject
	}
	own := p.names.volumeName(project, name)
	if id, err := atoll.NormalizeID(strings.TrimPrefix(name, "data-")); err == nil && id != "" && volume.DataName(id) == name {
		own = p.names.dataVolumeName(id)
	}
	if name == atoll.CacheVolume {
		own = p.names.cacheVolumeName(project)
	}
	if !atoll.ValidName(project) {
		return atoll.Errorf("remove volume", name, atoll.ErrNotExist, "no volume %q in project %q", name, project)
	}
	lock, err := p.acquireLock(ctx, "remove volume", volumesLockKey(project))
	if err != nil {
		return err
	}
	defer lock.Release()
	found, err := p.engine.VolumeInspect(ctx, own, client.VolumeInspectOptions{})
	if err == nil && found.Volume.Labels[labelProject] == project {
		_, err = p.engine.VolumeRemove(ctx, own, client.VolumeRemoveOptions{})
	}
	switch {
	case cerrdefs.IsNotFound(err), err == nil && found.Volume.Labels[labelProject] != project:
		return atoll.Errorf("remove volume", name, atoll.ErrNotExist, "no volume %q in project %q", name, project)
	case cerrdefs.IsConflict(err):
		return atoll.Errorf("remove volume", name, atoll.ErrConflict, "a sandbox mounts it: %w", err)
	}
	return p.wrapError(ctx, "remove volume", name, err)
}

// RemoveProject implements atoll.ProjectRemover. It removes the project's sandboxes and volumes.
func (p *Provider) RemoveProject(ctx context.Context, project string) error {
	return volume.RemoveProject(ctx, p, project)
}

// Resolve implements atoll.Resolver.
func (p *Provider) Resolve(ctx context.Context, project, name string) (string, error) {
	filters := p.names.selectOwn().Add("label", labelProject+"="+project).Add("label", labelName+"="+name)
	found, err := p.engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		return "", p.wrapError(ctx, "get", name, err)
	}
	for _, c := range found.Items {
		return c.Labels[labelSession], nil
	}
	return "", atoll.E("get", name, atoll.ErrNotFound, nil)
}

var (
	_ atoll.VolumeStore    = (*Provider)(nil)
	_ atoll.ProjectRemover = (*Provider)(nil)
	_ atoll.Resolver       = (*Provider)(nil)
)
