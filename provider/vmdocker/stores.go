package vmdocker

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// The kinds of recorded objects of a project, besides its sandboxes.
const (
	kindVolumes = "volumes"
	kindImages  = "images"
)

// learnVolumes records the volumes of a project.
func (p *Provider) learnVolumes(ctx context.Context, e *engine) error {
	var list []atoll.Volume
	err := p.withPings(ctx, e, func(ctx context.Context) (err error) {
		list, err = e.docker.Volumes(ctx, "")
		return err
	})
	if err != nil {
		return err
	}
	for i := range list {
		list[i].Provider = Name
	}
	return p.notes.writeKind(e.project, kindVolumes, list)
}

// Volumes implements atoll.VolumeStore. If a machine is off, it lists the volumes of its last
// use.
func (p *Provider) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	projects, err := p.notes.listProjects()
	if err != nil {
		return nil, atoll.E("volumes", project, atoll.KindOf(err), err)
	}
	var list []atoll.Volume
	for _, name := range projects {
		if project != "" && project != name {
			continue
		}
		e, _, err := p.runningEngine(ctx, name)
		if err == nil && e != nil {
			if err = p.learnVolumes(ctx, e); atoll.KindOf(err) == atoll.ErrUnavailable {
				err = nil
			}
		}
		if err != nil {
			return nil, err
		}
		volumes, err := p.volumesOf(name, e == nil)
		if err != nil {
			return nil, atoll.E("volumes", name, atoll.KindOf(err), err)
		}
		list = append(list, volumes...)
	}
	return list, nil
}

// volumesOf returns the recorded volumes of a project. If its machine is off, removed sandboxes
// do not count as users.
func (p *Provider) volumesOf(project string, off bool) (list []atoll.Volume, err error) {
	removed, err := p.notes.listRemovals(project)
	if err != nil {
		return nil, err
	}
	if err := p.notes.readKind(project, kindVolumes, &list); err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, removed.ownsVolume)
	noted, err := p.notes.listStatuses(project)
	for i, v := range list {
		list[i].InUse = v.InUse && !(off && !slices.ContainsFunc(noted, func(st atoll.Status) bool { return mountsVolume(st, v) }))
	}
	return list, err
}

// mountsVolume reports whether a sandbox of the volume's project mounts it.
func mountsVolume(st atoll.Status, v atoll.Volume) bool {
	return v.Sandbox == st.ID || v.Cache && st.Spec.Cache ||
		slices.ContainsFunc(st.Spec.Mounts, func(m atoll.Mount) bool { return m.Type == atoll.MountVolume && m.Source == v.Name })
}

// RemoveVolume implements atoll.VolumeStore. It starts the machine.
func (p *Provider) RemoveVolume(ctx context.Context, project, name string) error {
	project = cmp.Or(project, atoll.DefaultProject)
	all, err := p.Volumes(ctx, project)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(v atoll.Volume) bool { return v.Name == name }) {
		return atoll.Errorf("remove volume", name, atoll.ErrNotExist, "no volume %q in project %q", name, project)
	}
	return p.withEngine(ctx, project, func(ctx context.Context, e *engine) error {
		if err := e.docker.RemoveVolume(ctx, project, name); err != nil {
			return err
		}
		return p.learnVolumes(ctx, e)
	})
}

// RemoveProject implements atoll.ProjectRemover. It removes the machine, without starting it,
// and its disks, and with them the sandboxes and volumes.
func (p *Provider) RemoveProject(ctx context.Context, project string) error {
	if !atoll.ValidName(project) {
		return atoll.Errorf("remove project", project, atoll.ErrInvalid, "project name %q not valid", project)
	}
	unlock, err := p.boots.Lock(ctx, project)
	if err != nil {
		return err
	}
	defer unlock()
	p.dropEngine(project, "")
	if err := atoll.RemoveProject(ctx, p.opts.Machines, project); err != nil {
		return err
	}
	noted, err := p.notes.listStatuses(project)
	if err != nil {
		return atoll.E("remove project", project, atoll.KindOf(err), err)
	}
	err = errors.Join(
		p.opts.Forget(ctx, p.opts.Config.DataDisk(project)), ignoreNotExist(os.Remove(p.opts.Config.RootDisk(project))),
		fsutil.RemoveAll(filepath.Dir(p.opts.Config.ConsoleLog(project))), fsutil.RemoveAll(filepath.Join(p.opts.Dir, "engines", project)), p.notes.removeProject(project),
	)
	if err != nil {
		return atoll.E("remove project", project, atoll.KindOf(err), err)
	}
	for _, st := range noted {
		st.State, st.Ready, st.Reason = atoll.StateRemoved, false, ""
		p.watch.publishStatus(st, false)
	}
	return nil
}

// ignoreNotExist returns err, or nil if err says that a file does not exist.
func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Prepare implements atoll.Preparer. It starts the machine of the spec's project, and sends the
// image to it.
func (p *Provider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	made, err := spec.Complete(Name)
	if err == nil {
		err = p.checkSupport(made)
	}
	if err != nil {
		return err
	}
	if err := atoll.Prepare(ctx, p.opts.Machines, p.machineSpec(made.Project), progress); err != nil {
		return err
	}
	made.Provider = ""
	return p.withEngine(ctx, made.Project, func(ctx context.Context, e *engine) error {
		if err := e.docker.Prepare(ctx, made, progress); err != nil {
			return err
		}
		return p.learnImages(ctx, e)
	})
}

// learnImages records the images that a project's machine has.
func (p *Provider) learnImages(ctx context.Context, e *engine) error {
	var list []atoll.Image
	err := p.withPings(ctx, e, func(ctx context.Context) (err error) {
		list, err = e.docker.Images(ctx)
		return err
	})
	if err != nil {
		return err
	}
	for i := range list {
		list[i].Provider = Name
	}
	return p.notes.writeKind(e.project, kindImages, list)
}

// imagesOf returns the images of a project.
func (p *Provider) imagesOf(ctx context.Context, project string) (list []atoll.Image, err error) {
	e, _, err := p.runningEngine(ctx, project)
	if err == nil && e != nil {
		if err = p.learnImages(ctx, e); atoll.KindOf(err) == atoll.ErrUnavailable {
			err = nil
		}
	}
	if err == nil {
		err = p.notes.readKind(project, kindImages, &list)
	}
	return list, err
}

// Images implements atoll.ImageStore. It lists the images of all machines, each once.
func (p *Provider) Images(ctx context.Context) ([]atoll.Image, error) {
	projects, err := p.notes.listProjects()
	if err != nil {
		return nil, atoll.E("images", "", atoll.KindOf(err), err)
	}
	var list []atoll.Image
	for _, project := range projects {
		images, err := p.imagesOf(ctx, project)
		if err != nil {
			return nil, err
		}
		for _, im := range images {
			i := slices.IndexFunc(list, func(o atoll.Image) bool { return o.Ref == im.Ref && o.Digest == im.Digest })
			if i < 0 {
				list = append(list, im)
				continue
			}
			list[i].InUse = list[i].InUse || im.InUse
			if im.Used.After(list[i].Used) {
				list[i].Used = im.Used
			}
		}
	}
	slices.SortFunc(list, func(a, b atoll.Image) int { return cmp.Or(cmp.Compare(a.Ref, b.Ref), cmp.Compare(a.Digest, b.Digest)) })
	return list, nil
}

// RemoveImage implements atoll.ImageStore. It starts all machines that have the image, and
// removes it in each.
func (p *Provider) RemoveImage(ctx context.Context, ref string, force bool) error {
	found := atoll.Errorf("remove image", ref, atoll.ErrNotExist, "no such image was fetched")
	projects, err := p.notes.listProjects()
	if err != nil {
		return atoll.E("remove image", ref, atoll.KindOf(err), err)
	}
	for _, project := range projects {
		images, err := p.imagesOf(ctx, project)
		if err != nil {
			return err
		}
		if len(images) == 0 {
			continue
		}
		err = p.withEngine(ctx, project, func(ctx context.Context, e *engine) error {
			if err := e.docker.RemoveImage(ctx, ref, force); err != nil {
				return err
			}
			return p.learnImages(ctx, e)
		})
		if atoll.KindOf(err) == atoll.ErrNotExist {
			continue
		}
		if err != nil {
			return err
		}
		found = nil
	}
	return found
}

// PruneImages implements atoll.ImageStore. It prunes the images of running machines.
func (p *Provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	var all atoll.Pruned
	if opts.UnusedFor < 0 {
		return all, atoll.Errorf("prune images", "", atoll.ErrInvalid, "unused for %s: must not be negative", opts.UnusedFor)
	}
	projects, err := p.notes.listProjects()
	if err != nil {
		return all, atoll.E("prune images", "", atoll.KindOf(err), err)
	}
	for _, project := range projects {
		e, _, err := p.runningEngine(ctx, project)
		if err != nil {
			return all, err
		}
		if e == nil {
			continue
		}
		pruned, err := e.docker.PruneImages(ctx, opts)
		if err == nil {
			err = p.learnImages(ctx, e)
		}
		all.Size += pruned.Size
		all.Images = append(all.Images, pruned.Images...)
		if err != nil {
			return all, err
		}
	}
	slices.Sort(all.Images)
	all.Images = slices.Compact(all.Images)
	return all, nil
}

// ResolveImage implements atoll.ImageResolver. It returns the digest that the most recently
// started machine has under that name.
func (p *Provider) ResolveImage(ctx context.Context, ref string) (string, error) {
	projects, err := p.notes.listProjects()
	if err != nil {
		return "", atoll.E("resolve image", ref, atoll.KindOf(err), err)
	}
	var digest string
	var newest time.Time
	for _, project := range projects {
		e, _, err := p.runningEngine(ctx, project)
		if err != nil {
			return "", err
		}
		if e == nil {
			continue
		}
		var found string
		err = p.withPings(ctx, e, func(ctx context.Context) (err error) {
			found, err = e.docker.ResolveImage(ctx, ref)
			return err
		})
		if err == nil && e.started.After(newest) {
			digest, newest = found, e.started
		}
		if err != nil && atoll.KindOf(err) != atoll.ErrNotExist && atoll.KindOf(err) != atoll.ErrUnavailable {
			return "", err
		}
	}
	if digest == "" {
		return "", atoll.Errorf("resolve image", ref, atoll.ErrNotExist, "no running machine has an image %q", ref)
	}
	return digest, nil
}

var (
	_ atoll.VolumeStore    = (*Provider)(nil)
	_ atoll.ProjectRemover = (*Provider)(nil)
	_ atoll.Preparer       = (*Provider)(nil)
	_ atoll.ImageStore     = (*Provider)(nil)
	_ atoll.ImageResolver  = (*Provider)(nil)
)
