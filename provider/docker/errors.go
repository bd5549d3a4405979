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

// containerError returns the error for a container that the engine did not create or start. It
// finds the kind in the text of err where the engine gives no other sign.
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
	case len(spec.Mounts) > 0 && says("Not a directory", "is a directory", "duplicate mount destination"): // from Podman
		return fail(atoll.ErrInvalid, "a mount covers a directory with a file or a file with a directory, or two mounts have the same target")
	case spec.Network.Mode == atoll.NetworkNamed && cerrdefs.IsNotFound(err) && says("network"):
		return fail(atoll.ErrNotExist, "its network %q is gone: remove the sandbox and create it again with its id, which preserves its data volume", spec.Network.Name)
	case spec.Publishes() && says("port is already allocated", "address already in use"):
		return fail(atoll.ErrConflict, "a host port is in use: use another one, or 0 for any")
	case spec.Resources.GPUs != "" && says("could not select device driver"):
		return fail(atoll.ErrUnavailable, "the engine has no GPUs, or lacks the container toolkit of their vendor")
	case p.opts.Runtime != "" && says("nknown runtime", "invalid runtime"):
		return p.runtimeError(ctx, err)
	}
	return err
}

// runtimeError returns err, or a better error if the engine does not have the runtime.
func (p *Provider) runtimeError(ctx context.Context, err error) error {
	found, infoErr := p.engine.Info(ctx, client.InfoOptions{})
	if infoErr != nil {
		return err
	}
	if _, ok := found.Info.Runtimes[p.opts.Runtime]; ok {
		return err
	}
	return atoll.Errorf("create", "", atoll.ErrInvalid, "the engine has no runtime %q (it has %s): %w",
		p.opts.Runtime, strings.Join(slices.Sorted(maps.Keys(found.Info.Runtimes)), ", "), err)
}

// deviceRequests returns the GPUs to request from the engine.
func deviceRequests(s *atoll.Spec) ([]container.DeviceRequest, error) {
	count, ids, err := s.Resources.GPUs.Devices()
	if err != nil || s.Resources.GPUs == "" {
		return nil, err
	}
	return []container.DeviceRequest{{Count: count, DeviceIDs: ids, Capabilities: [][]string{{"gpu"}}}}, nil
}
