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

// checkTargets returns an error if the way to the target of a mount has a link that a program
// has left. The engine would follow it, and the mount could cover the guest's program. It allows
// links that are not on a volume and do not lead to the guest, such as those of the image. The
// container must not run. Kinds: ErrInvalid.
func (p *Provider) checkTargets(ctx context.Context, spec *atoll.Spec, r *record) error {
	engine, err := p.engineInfo(ctx)
	if err != nil {
		return p.wrapError(ctx, "start", spec.ID, err)
	}
	if engine.podman {
		return p.checkPodmanTargets(ctx, spec, r)
	}
	if err := p.checkImageTargets(ctx, spec, r); err != nil {
		return err
	}
	for _, m := range spec.Mounts {
		for _, name := range pathPrefixes(m.Target) {
			found, err := p.lstatFile(ctx, r.container, name)
			if cerrdefs.IsNotFound(err) {
				break // the engine creates it
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

// checkImageTargets returns an error if the image has a link at a mount point of Atoll's. It
// checks each image once: no program can replace a mount point in the root directory.
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
			return atoll.Errorf("start", spec.ID, atoll.ErrInvalid, "image %s: %s is a link, and mounts must not follow links: use another image", r.Image, name)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.safeImages[r.imageID] = true
	return nil
}

// linkError returns the error for a mount with a link at name, on the way to its target.
func linkError(spec *atoll.Spec, m atoll.Mount, name string) error {
	return atoll.Errorf("start", spec.ID, atoll.ErrInvalid,
		"mount target %q: %s is a link, and mounts must not follow links: create the sandbox again with its id and without the mount, and remove the link", m.Target, name)
}

// lstatFile describes a file of a container that does not run. It does not follow a link at the
// end of the name. The engine mounts all of the container's mounts for it.
func (p *Provider) lstatFile(ctx context.Context, id, name string) (container.PathStat, error) {
	found, err := p.engine.ContainerStatPath(ctx, id, client.ContainerStatPathOptions{Path: name})
	if !cerrdefs.IsInternal(err) {
		return found.Stat, err
	}
	copied, reason := p.engine.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: name}) // its error has a text
	if reason == nil {
		copied.Content.Close()
		return found.Stat, err
	}
	if strings.Contains(reason.Error(), "not a directory") {
		return found.Stat, atoll.Errorf("start", "", atoll.ErrInvalid, "a mount covers a directory with a file, or a file with a directory: %w", reason)
	}
	return found.Stat, reason
}

// pathPrefixes returns the directories on the way to target, and target itself as the last one.
func pathPrefixes(target string) []string {
	var way []string
	name := ""
	for part := range strings.SplitSeq(strings.TrimPrefix(path.Clean(target), "/"), "/") {
		name += "/" + part
		way = append(way, name)
	}
	return way
}

// persistentDirs returns the directories of the sandbox that outlive it.
func persistentDirs(spec *atoll.Spec) []string {
	dirs := []string{atoll.DefaultWorkdir, dataDir}
	for _, m := range spec.Mounts {
		if m.Type != atoll.MountTmpfs {
			dirs = append(dirs, path.Clean(m.Target))
		}
	}
	return dirs
}
