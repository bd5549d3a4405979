package docker

import (
	"context"
	"maps"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
)

// containerError gives the engine's refusal to make or to start the container of spec its
// kind, where the engine says so in words only.
func (p *Provider) containerError(ctx context.Context, spec *atoll.Spec, err error) error {
	says := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(err.Error(), w) })
	}
	fail := func(kind atoll.Kind, format string, args ...any) error {
		return atoll.Errorf("start", spec.ID, kind, format+": %w", append(args, err)...)
	}
	switch {
	case says("bind source path does not exist"):
		return atoll.E("mount", "", atoll.ErrNotExist, err)
	case len(spec.Mounts) > 0 && says("Not a directory", "is a directory", "duplicate mount destination"): // podman's words
		return fail(atoll.ErrInvalid, "a file is mounted on a directory, or a directory on a file, or two mounts on one")
	case spec.Network.Mode == atoll.NetworkNamed && cerrdefs.IsNotFound(err) && says("network"):
		return fail(atoll.ErrNotExist, "the network %q that it was made on is gone: remove it, and make it anew with its id to have its data volume again", spec.Network.Name)
	case spec.Publishes() && says("port is already allocated", "address already in use"):
		return fail(atoll.ErrConflict, "a host port is taken: use another one, or 0 for any")
	case spec.Resources.GPUs != "" && says("could not select device driver"):
		return fail(atoll.ErrUnavailable, "the engine has no GPUs, or not the toolkit of their maker")
	case p.opts.Runtime != "" && says("nknown runtime", "invalid runtime"):
		return p.runtimeError(ctx, err)
	}
	return err
}

// runtimeError is err, unless the engine does not have the runtime.
func (p *Provider) runtimeError(ctx context.Context, err error) error {
	found, infoErr := p.engine.Info(ctx, client.InfoOptions{})
	if infoErr != nil {
		return err
	}
	if _, ok := found.Info.Runtimes[p.opts.Runtime]; ok {
		return err
	}
	return atoll.Errorf("create", "", atoll.ErrInvalid, "the engine has no runtime %q, it has %s: %w",
		p.opts.Runtime, strings.Join(slices.Sorted(maps.Keys(found.Info.Runtimes)), ", "), err)
}

// deviceRequests is what of its devices the engine is asked for.
func deviceRequests(s *atoll.Spec) ([]container.DeviceRequest, error) {
	count, ids, err := s.Resources.GPUs.Devices()
	if err != nil || s.Resources.GPUs == "" {
		return nil, err
	}
	return []container.DeviceRequest{{Count: count, DeviceIDs: ids, Capabilities: [][]string{{"gpu"}}}}, nil
}
