package volume

import (
	"context"
	"errors"

	"github.com/seed46cd37a8/atoll"
)

// A Provider is a provider with volumes.
type Provider interface {
	atoll.Provider
	atoll.VolumeStore
}

// RemoveProject removes the sandboxes of a project, and then its volumes. If one volume cannot
// be removed, it removes the others, and returns all errors. The RemoveProject of a provider
// calls it first. Kinds: ErrInvalid, and those of p.
func RemoveProject(ctx context.Context, p Provider, project string) error {
	if !atoll.ValidName(project) {
		return atoll.Errorf("remove project", project, atoll.ErrInvalid, "invalid project name")
	}
	all, err := p.List(ctx, atoll.Filter{Project: project})
	if err != nil {
		return err
	}
	for _, st := range all {
		sb, err := p.Get(ctx, st.ID)
		if err == nil {
			err = sb.Remove(ctx, atoll.RemoveVolumes())
		}
		if err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
			return err
		}
	}
	volumes, err := p.Volumes(ctx, project)
	if atoll.KindOf(err) == atoll.ErrUnsupported { // there are no volumes
		err = nil
	}
	errs := []error{err}
	for _, v := range volumes {
		if err := p.RemoveVolume(ctx, v.Project, v.Name); atoll.KindOf(err) != atoll.ErrNotExist {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
