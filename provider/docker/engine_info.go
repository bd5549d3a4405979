package docker

import (
	"context"
	"slices"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// engineInfo describes an engine and its machine.
type engineInfo struct {
	arch              string // as GOARCH
	memory, cpu, pids bool   // whether it can limit these
	cgroups           bool   // its containers have cgroups; otherwise it cannot pause or measure them
	podman            bool   // it is Podman's service, which serves the same API
}

// engineInfo returns what the engine says about itself. It asks once.
func (p *Provider) engineInfo(ctx context.Context) (engineInfo, error) {
	p.mu.Lock()
	known := p.cachedInfo
	p.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	version, err := p.engine.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return engineInfo{}, err
	}
	found, err := p.engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return engineInfo{}, err
	}
	engine := engineInfo{
		arch: version.Arch, memory: found.Info.MemoryLimit, cpu: found.Info.CPUCfsQuota, pids: found.Info.PidsLimit, cgroups: found.Info.CgroupDriver != "none",
		podman: slices.ContainsFunc(version.Components, func(c system.ComponentVersion) bool { return c.Name == "Podman Engine" }),
	}
	if engine.podman {
		controllers, err := p.cgroupControllers(ctx)
		if err != nil {
			return engineInfo{}, err
		}
		has := func(name string) bool { return slices.Contains(controllers, name) }
		engine.memory, engine.cpu, engine.pids = has("memory"), has("cpu"), has("pids")
		engine.cgroups = found.Info.CgroupVersion == "2" || len(controllers) > 0
	}
	p.mu.Lock()
	p.cachedInfo = &engine
	p.mu.Unlock()
	return engine, nil
}

// supportedCaps returns those of caps that the engine supports.
func (engine engineInfo) supportedCaps(caps atoll.Caps) atoll.Caps {
	caps.MemoryLimit = caps.MemoryLimit && engine.memory
	caps.CPULimit = caps.CPULimit && engine.cpu
	caps.ProcessLimit = caps.ProcessLimit && engine.pids
	caps.Pause = caps.Pause && engine.cgroups
	caps.Usage = caps.Usage && engine.cgroups
	caps.GPU = caps.GPU && !engine.podman
	return caps
}

// enforceableLimits returns the limits to set: those of the spec, and the defaults that the
// engine can enforce. It fails if the engine cannot enforce a limit of the spec. Kinds:
// ErrUnsupported.
func (engine engineInfo) enforceableLimits(spec *atoll.Spec) (atoll.Resources, error) {
	asked, r := spec.Resources, spec.Resources.WithDefaults()
	for _, limit := range []struct {
		what       string
		asked, can bool
		lift       func()
	}{
		{"memory", asked.Memory > 0, engine.memory, func() { r.Memory = atoll.Unlimited }},
		{"CPU", asked.CPUs > 0, engine.cpu, func() { r.CPUs = atoll.Unlimited }},
		{"process", asked.Processes > 0, engine.pids, func() { r.Processes = atoll.Unlimited }},
	} {
		if limit.asked && !limit.can {
			return r, atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "this engine cannot enforce a %s limit: %s", limit.what, limitRequirement)
		}
		if !limit.can {
			limit.lift()
		}
	}
	return r, nil
}

// limitRequirement completes messages about limits that the engine cannot enforce.
const limitRequirement = "it needs the cgroup controller; a rootless engine needs cgroup v2, with the controllers delegated by systemd"

// requireCgroups returns an error if the engine's containers have no cgroups. Kinds:
// ErrUnsupported.
func (p *Provider) requireCgroups(ctx context.Context, op, id string) error {
	engine, err := p.engineInfo(ctx)
	if err == nil && !engine.cgroups {
		err = atoll.Errorf(op, id, atoll.ErrUnsupported, "%s", noCgroupsReason)
	}
	return p.wrapError(ctx, op, id, err)
}

// noCgroupsReason completes messages about an engine that can neither pause nor measure.
const noCgroupsReason = "the containers of this rootless engine have no cgroups: use cgroup v2"

// checkGuestProgram returns an error if the guest's program was not built for arch, a GOARCH.
// Kinds: ErrUnavailable.
func checkGuestProgram(program []byte, arch string) error {
	if err := guest.Fits(program, arch); err != nil {
		return atoll.Errorf("create", "", atoll.ErrUnavailable, "%w, or set docker.plain to do without a guest", err)
	}
	return nil
}
