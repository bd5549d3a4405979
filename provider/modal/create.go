package modal

import (
	"context"
	"net/netip"
	"path"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
	"github.com/seed46cd37a8/atoll/provider/internal/steps"
	"github.com/seed46cd37a8/atoll/provider/modal/settings"
)

// minMemory is the least memory that Modal gives a sandbox.
const minMemory = 128 << 20

// CheckSpec implements remote.Backend.
func (b backend) CheckSpec(spec *atoll.Spec) error {
	o, r := &b.opts, spec.Resources
	err := spec.CheckCaps("modal", o.caps(), map[string]string{
		"publish": "set modal.tunnels to publish ports by tunnels, which are public",
		"volumes": "modal.ephemeral is set",
	})
	if err != nil {
		return err
	}
	if spec.Network.Mode == atoll.NetworkOn && len(spec.Network.Allow) > 0 {
		return atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "network.allow with network mode on: Modal decides what sandboxes may reach")
	}
	if choosesHostPort(spec) {
		return atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "chosen host ports: Modal assigns them")
	}
	if spec.Pull != "" {
		return atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "pull %s: Modal retains each image as it was when it pulled it first; name a newer one by another tag or its digest", spec.Pull)
	}
	if spec.Image != "" {
		if _, err := name.ParseReference(spec.Image); err != nil {
			return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "image: %w", err)
		}
	}
	if r.Memory > 0 && r.Memory < minMemory {
		return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "memory %s: the minimum at Modal is %s", r.Memory, atoll.Bytes(minMemory))
	}
	for _, m := range spec.Mounts {
		if settings.OverGuest(m.Target) {
			return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "mount %s: the path is reserved for Atoll's program; mount it elsewhere", m.Target)
		}
		if slices.ContainsFunc(o.Buckets, func(b Bucket) bool { return b.Path == path.Clean(m.Target) }) {
			return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "mount %s: a bucket of modal.buckets is mounted there", m.Target)
		}
	}
	if spec.Network.Mode == atoll.NetworkEgress {
		_, err := allowedNetworks(spec)
		return err
	}
	return nil
}

func choosesHostPort(spec *atoll.Spec) bool {
	for _, port := range spec.Ports {
		if port.Publish && port.HostPort != 0 {
			return true
		}
	}
	return false
}

// allowedNetworks returns the networks that a sandbox may reach. Kinds: ErrUnsupported.
func allowedNetworks(spec *atoll.Spec) (list []string, err error) {
	for _, word := range spec.Network.Allow {
		if prefix, err := netip.ParsePrefix(word); err == nil {
			list = append(list, prefix.Masked().String())
			continue
		}
		addr, err := netip.ParseAddr(word)
		if err != nil {
			return nil, atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "network.allow %q: the modal provider has no host names there; use networks like 192.0.2.0/24", word)
		}
		list = append(list, netip.PrefixFrom(addr, addr.BitLen()).String())
	}
	return list, nil
}

// Prepare implements remote.Volumes.
func (b backend) Prepare(c *creation) []steps.Step {
	return []steps.Step{{Name: "volumes", Do: func(ctx context.Context) error { return b.createVolumes(ctx, c) }}}
}

// A creation is the creation of one sandbox.
type creation = remote.Creation[*revision]
