package docker

import (
	"context"
	"io/fs"
	"path"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
)

// checkTargets fails if a program has left a link on the way to where a mount of the
// container, which does not run, goes to. The engine would follow it, and the mount
// cover what it leads to: the guest's program, for instance. No link on a volume
// is followed; those of the image are, if they are on the way only, and lead
// elsewhere than to the guest.
func (p *Provider) checkTargets(ctx context.Context, spec *atoll.Spec, r *record) error {
	f, err := p.engineInfo(ctx)
	if err != nil {
		return p.wrapError(ctx, "start", spec.ID, err)
	}
	if f.podman {
		return p.checkPodmanTargets(ctx, spec, r)
	}
	if err := p.checkImageTargets(ctx, spec, r); err != nil {
		return err
	}
	for _, m := range spec.Mounts {
		for _, name := range pathPrefixes(m.Target) {
			found, err := p.lstatFile(ctx, r.container, name)
			if cerrdefs.IsNotFound(err) {
				break // the engine makes it
			}
			if err != nil {
				return p.wrapError(ctx, "start", spec.ID, err)
			}
			_, covers := dirfs.Below(guestDir, path.Clean(found.LinkTarget))
			if found.Mode&fs.ModeSymlink != 0 && (covers || slices.ContainsFunc(persistentDirs(spec), func(dir string) bool {
				_, below := dirfs.Below(dir, name)
				return below
			})) {
				return linkError(spec, m, name)
			}
		}
	}
	return nil
}

// checkImageTargets fails if the image has a link where the guest or the data volume is
// mounted. Of each image that is found out once: what is in the root directory
// cannot be replaced while it is a mount.
func (p *Provider) checkImageTargets(ctx context.Context, spec *atoll.Spec, r *record) error {
	p.mu.Lock()
	fine := p.safeImages[r.imageID]
	p.mu.Unlock()
	if fine || r.plain {
		return nil
	}
	for _, name := range []string{guestDir, dataDir, atoll.DefaultWorkdir, cacheDir} {
		found, err := p.lstatFile(ctx, r.container, name)
		if err != nil && !cerrdefs.IsNotFound(err) {
			return p.wrapError(ctx, "start", spec.ID, err)
		}
		if err == nil && found.Mode&fs.ModeSymlink != 0 {
			return atoll.Errorf("start", spec.ID, atoll.ErrInvalid, "image %s: %s is a link in it, and no mount follows it: use another image", r.Image, name)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.safeImages[r.imageID] = true
	return nil
}

// linkError is the error of a mount on whose way name is a link.
func linkError(spec *atoll.Spec, m atoll.Mount, name string) error {
	return atoll.Errorf("start", spec.ID, atoll.ErrInvalid,
		"mount target %q: %s is a link, and no mount follows it: make the sandbox anew, with its id and without the mount, and remove the link", m.Target, name)
}

// lstatFile finds out what a name stands for in a container that does not run, and
// follows no link at its end. The engine mounts for it all that the container mounts.
func (p *Provider) lstatFile(ctx context.Context, id, name string) (container.PathStat, error) {
	found, err := p.engine.ContainerStatPath(ctx, id, client.ContainerStatPathOptions{Path: name})
	if !cerrdefs.IsInternal(err) {
		return found.Stat, err
	}
	copied, why := p.engine.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: name}) // which says it in words
	if why == nil {
		copied.Content.Close()
		return found.Stat, err
	}
	if strings.Contains(why.Error(), "not a directory") {
		return found.Stat, atoll.Errorf("start", "", atoll.ErrInvalid, "a file is mounted on a directory, or a directory on a file: %w", why)
	}
	return found.Stat, why
}

// pathPrefixes lists the directories that lead to target, which is the last one.
func pathPrefixes(target string) []string {
	var way []string
	name := ""
	for part := range strings.SplitSeq(strings.TrimPrefix(path.Clean(target), "/"), "/") {
		name += "/" + part
		way = append(way, name)
	}
	return way
}

// persistentDirs are the directories of the sandbox that outlive it.
func persistentDirs(spec *atoll.Spec) []string {
	dirs := []string{atoll.DefaultWorkdir, dataDir}
	for _, m := range spec.Mounts {
		if m.Type != atoll.MountTmpfs {
			dirs = append(dirs, path.Clean(m.Target))
		}
	}
	return dirs
}
