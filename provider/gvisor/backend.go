//go:build linux

package gvisor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/userdb"
	"github.com/seed46cd37a8/atoll/machine/image"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/plan"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// A backend implements supervised.Backend for sandboxes on gVisor.
type backend struct {
	opts   Options
	caps   atoll.Caps
	images *image.Store
}

// Open implements supervised.Backend.
func (b *backend) Open(dir statedir.Dir) (err error) {
	b.images, err = image.Open(dir.Images(), b.opts.Image)
	return err
}

// Close implements supervised.Backend.
func (b *backend) Close() error { return b.images.Close() }

// Image implements supervised.Backend: it finds the root file system.
func (b *backend) Image(ctx context.Context, rec *statedir.Record) error {
	st := &rec.Status
	if isHost(st.Spec.Image) {
		st.Image, rec.Env = hostImage, plan.HostEnv(os.Environ(), b.opts.HostPaths)
		return nil
	}
	im, err := b.images.GetBy(ctx, st.Spec.Pull, st.Spec.Image, nil)
	if err != nil {
		return err
	}
	if st.Spec.User == "" && !userdb.IsRoot(im.User) && !b.caps.Users {
		return atoll.Errorf("create", st.ID, atoll.ErrUnsupported,
			"image %s runs as user %q, and only root exists without privileges: set the user to root, or run Atoll as root", im.Ref, im.User)
	}
	st.Image = pinnedRef(im)
	rec.Image, rec.Digest, rec.Env, rec.User = im.Root, im.Digest, im.Env, im.User
	return nil
}

// isHost reports whether the image is the machine's own file system.
func isHost(image string) bool { return image == "" || image == hostImage }

const hostImage = "host"

// pinnedRef returns the reference by which the same image can be fetched again: with its
// digest, unless it is a path ("oci:/lay"), which cannot have one.
func pinnedRef(im *image.Image) string {
	if im.Digest == "" || im.Ref == im.Digest || strings.Contains(im.Ref, ":/") {
		return im.Ref
	}
	name, _, _ := strings.Cut(im.Ref, "@sha")
	return name + "@" + im.Digest
}

// Hold implements supervised.Backend: it keeps the sandbox's image in the store until all
// holders of the returned file have closed it; nil for the host's file system. It fetches
// an image again that was removed while the sandbox was stopped.
func (b *backend) Hold(ctx context.Context, rec *statedir.Record) (*os.File, error) {
	if rec.Image == "" {
		return nil, nil
	}
	im := &image.Image{Ref: rec.Status.Image, Digest: rec.Digest, Root: rec.Image}
	f, err := im.Hold()
	if err == nil || atoll.KindOf(err) != atoll.ErrNotExist {
		return f, err
	}
	im, getErr := b.images.Get(ctx, rec.Status.Image, nil)
	if getErr != nil {
		return nil, atoll.Errorf("start", rec.Status.ID, atoll.KindOf(getErr), "image %s was removed, and cannot be fetched again: %w", rec.Status.Image, getErr)
	}
	if im.Digest != rec.Digest {
		return nil, atoll.Errorf("start", rec.Status.ID, atoll.ErrNotExist, "image %s was removed, and %s has another digest now", rec.Digest, im.Ref)
	}
	return im.Hold()
}

// Restores implements supervised.Backend.
func (b *backend) Restores(snap *atoll.Snapshot, spec *atoll.Spec) error {
	if snap.Version != Version() {
		return atoll.Errorf("create", spec.ID, atoll.ErrUnsupported,
			"snapshot %s was taken with gVisor %s and this is %s: only the same version can restore memory",
			snap.ID, snap.Version, Version())
	}
	if !sameShape(&snap.Spec, spec) {
		return atoll.Errorf("create", spec.ID, atoll.ErrInvalid,
			"snapshot %s was taken with other mounts, or another read_only_root; use the same mount targets", snap.ID)
	}
	return nil
}

// sameShape reports whether both specs have the same mount targets and options, as restored
// memory requires; the mounted sources may differ.
func sameShape(a, b *atoll.Spec) bool {
	targets := func(s *atoll.Spec) map[string]string {
		m := map[string]string{}
		for _, mount := range s.Mounts {
			m[path.Clean(mount.Target)] = fmt.Sprint(mount.Type == atoll.MountTmpfs, mount.ReadOnly, mount.Size)
		}
		return m
	}
	return a.ReadOnlyRoot == b.ReadOnlyRoot && maps.Equal(targets(a), targets(b))
}

// Helper implements supervised.Backend. The binary must be static: if it is built with cgo,
// the sentry dies when it unmaps memory that libc needs.
func (b *backend) Helper() (path string, err error) {
	if path = b.opts.Helper; path != "" {
		err = Static(path)
	} else if path, err = ownEngine(b.opts.Dir); err == errDynamic && b.opts.BuildHelper {
		path, err = buildHelper(b.opts.Dir, ownVersion(), b.opts.Log)
	}
	if err != nil {
		return "", atoll.E("start", "", atoll.ErrUnavailable, err)
	}
	return path, nil
}

// buildsHelper reports whether sandboxes need a helper that the first of them builds.
func (b *backend) buildsHelper() bool {
	if b.opts.Helper != "" || !b.opts.BuildHelper {
		return false
	}
	_, err := ownEngine(b.opts.Dir)
	return err == errDynamic
}

// Limits implements supervised.Backend. It does not limit the number of processes: the host
// sees the sentry's threads, not the processes inside.
func (b *backend) Limits(r atoll.Resources) cgroup.Limits {
	return plan.CgroupLimits(r)
}

// Job implements supervised.Backend. A sandbox that was stopped starts with its saved
// files, not with the memory of the snapshot that it was made from.
func (b *backend) Job(job *supervisor.Job) (any, error) {
	p := plan.Plan{HostPaths: b.opts.HostPaths, Platform: b.opts.Platform, Rootless: os.Geteuid() != 0, Debug: b.opts.Debug}
	upper := filepath.Join(job.Dir, plan.UpperName)
	if _, err := os.Lstat(upper); err == nil {
		p.Upper, job.Snapshot = upper, ""
	}
	return p, nil
}

var _ supervised.Backend = (*backend)(nil)
