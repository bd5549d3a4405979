package inprocess

import (
	"maps"
	"path"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// checkSupported returns ErrUnsupported if spec asks for something that the provider cannot do.
func (p *Provider) checkSupported(spec *atoll.Spec) error {
	wanted := *spec
	if wanted.Image == p.opts.Image {
		wanted.Image = ""
	}
	if p.opts.Backend.OwnUser(wanted.User) {
		wanted.User = ""
	}
	advice := map[string]string{"images": "every sandbox has " + p.opts.Image}
	maps.Copy(advice, p.opts.Advice)
	if err := wanted.CheckCaps(p.opts.Info.Name, p.opts.Info.Caps, advice); err != nil {
		return err
	}
	return p.checkMounts(spec)
}

// checkMounts returns ErrUnsupported if the provider cannot mount the volumes of spec.
func (p *Provider) checkMounts(spec *atoll.Spec) error {
	if err := volume.CheckMounts(spec); err != nil {
		return err
	}
	pl := newPlace(spec, p.volumes)
	for _, m := range spec.Mounts {
		rel, ok := dirfs.Below(pl.Prefix, path.Clean(m.Target))
		switch {
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
