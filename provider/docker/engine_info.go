package docker

import (
	"context"
	"slices"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// engineInfo are what an engine says of its machine.
type engineInfo struct {
	arch              string // as GOARCH
	memory, cpu, pids bool   // can be limited
	cgroups           bool   // its containers are in some; else they cannot be paused or measured
	podman            bool   // it is Podman's service, which speaks the same API
}

// engineInfo asks the engine once.
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
	f := engineInfo{
		arch: version.Arch, memory: found.Info.MemoryLimit, cpu: found.Info.CPUCfsQuota, pids: found.Info.PidsLimit, cgroups: found.Info.CgroupDriver != "none",
		podman: slices.ContainsFunc(version.Components, func(c system.ComponentVersion) bool { return c.Name == "Podman Engine" }),
	}
	if f.podman {
		controllers, err := p.cgroupControllers(ctx)
		if err != nil {
			return engineInfo{}, err
		}
		has := func(name string) bool { return slices.Contains(controllers, name) }
		f.memory, f.cpu, f.pids = has("memory"), has("cpu"), has("pids")
		f.cgroups = found.Info.CgroupVersion == "2" || len(controllers) > 0
	}
	p.mu.Lock()
	p.cachedInfo = &f
	p.mu.Unlock()
	return f, nil
}

// supportedCaps are those of caps that the engine can do on its machine.
func (f engineInfo) supportedCaps(caps atoll.Caps) atoll.Caps {
	caps.MemoryLimit = caps.MemoryLimit && f.memory
	caps.CPULimit = caps.CPULimit && f.cpu
	caps.ProcessLimit = caps.ProcessLimit && f.pids
	caps.Pause = caps.Pause && f.cgroups
	caps.Usage = caps.Usage && f.cgroups
	caps.GPU = caps.GPU && !f.podman
	return caps
}

// enforceableLimits checks that the engine can enforce the limits that were asked for, and
// returns those to set: the defaults only where it can.
func (f engineInfo) enforceableLimits(spec *atoll.Spec) (atoll.Resources, error) {
	asked, r := spec.Resources, spec.Resources.WithDefaults()
	for _, limit := range []struct {
		what       string
		asked, can bool
		lift       func()
	}{
		{"memory", asked.Memory > 0, f.memory, func() { r.Memory = atoll.Unlimited }},
		{"CPU", asked.CPUs > 0, f.cpu, func() { r.CPUs = atoll.Unlimited }},
		{"process", asked.Processes > 0, f.pids, func() { r.Processes = atoll.Unlimited }},
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

// limitRequirement is what an engine needs to limit anything.
const limitRequirement = "it needs that cgroup controller, and a rootless one needs cgroup v2 and its controllers delegated by systemd"

// requireCgroups is an error if the engine's containers are in no cgroups.
func (p *Provider) requireCgroups(ctx context.Context, op, id string) error {
	f, err := p.engineInfo(ctx)
	if err == nil && !f.cgroups {
		err = atoll.Errorf(op, id, atoll.ErrUnsupported, "%s", noCgroupsReason)
	}
	return p.wrapError(ctx, op, id, err)
}

// noCgroupsReason is why an engine can neither pause nor measure.
const noCgroupsReason = "this engine is rootless, and its containers are in no cgroup: that needs cgroup v2"

// checkGuestProgram is an error if the guest's program is not for that machine.
func checkGuestProgram(program []byte, arch string) error {
	if err := guest.Fits(program, arch); err != nil {
		return atoll.Errorf("create", "", atoll.ErrUnavailable, "%w, or set docker.plain to do without", err)
	}
	return nil
}
