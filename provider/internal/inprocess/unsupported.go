package inprocess

import (
	"path"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// checkSupported returns ErrUnsupported if spec asks for something that the provider cannot do.
func (p *Provider) checkSupported(spec *atoll.Spec) error {
	caps, r := p.opts.Info.Caps, spec.Resources
	for _, feature := range []struct {
		asked, supported bool
		name             string
	}{
		{spec.Image != "" && spec.Image != p.opts.Image, caps.Images, "images other than " + p.opts.Image},
		{spec.Snapshot != "", caps.Snapshot, "snapshots"},
		{spec.Workspace != (atoll.WorkspaceRef{}), caps.Workspaces, "workspaces"},
		{spec.IdleStop > 0 || spec.IdleRemove, caps.IdleStop, "idle stop"},
		{spec.TTY != nil, caps.TTY, "terminals"},
		{!p.opts.Backend.OwnUser(spec.User), caps.Users, "users other than its own"},
		{spec.ReadOnlyRoot, caps.ReadOnlyRoot, "read-only root"},
		{r.Memory > 0, caps.MemoryLimit, "memory limits"},
		{r.CPUs > 0, caps.CPULimit, "cpu limits"},
		{r.Processes > 0, caps.ProcessLimit, "process limits"},
		{r.Disk > 0, caps.DiskLimit, "disk limits"},
		{spec.Network.Mode == atoll.NetworkOn, caps.NetworkOn, "network mode on"},
		{spec.Network.Mode == atoll.NetworkEgress, caps.Egress, "network mode egress"},
		{spec.Network.Mode == atoll.NetworkNamed, caps.NetworkNamed, "network mode named"},
		{spec.Publishes(), caps.Publish, "published ports"},
		{spec.Cache, caps.Cache, "cache"},
		{r.GPUs != "", caps.GPU, "GPUs"},
	} {
		if feature.asked && !feature.supported {
			return p.unsupportedError(spec, feature.name)
		}
	}
	return p.checkMounts(spec)
}

// checkMounts returns ErrUnsupported if the provider cannot mount the volumes of spec.
func (p *Provider) checkMounts(spec *atoll.Spec) error {
	if err := volume.Mountable(spec); err != nil {
		return err
	}
	pl := newPlace(spec, p.volumes)
	for _, m := range spec.Mounts {
		rel, ok := dirfs.Below(pl.Prefix, path.Clean(m.Target))
		switch {
		case m.Type != atoll.MountVolume:
			return p.unsupportedError(spec, "mounts of type "+string(m.Type))
		case m.ReadOnly:
			return p.unsupportedError(spec, "read-only mounts")
		case !ok || rel == ".":
			return p.unsupportedError(spec, "mount targets that are not below "+pl.Prefix)
		}
	}
	return nil
}

func (p *Provider) unsupportedError(spec *atoll.Spec, what string) error {
	return atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "provider %s has no %s", p.opts.Info.Name, what)
}
