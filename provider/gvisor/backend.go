//go:build linux

package gvisor

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/plan"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/imagestore"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// A backend implements supervised.Backend for sandboxes on gVisor.
type backend struct {
	*imagestore.Backend
	opts   Options
	caps   atoll.Caps
	groups cgroup.Base
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
