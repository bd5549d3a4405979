// Package limit is a layer that applies configured default limits to sandboxes, and restricts
// their lifetime.
package limit

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Options are the limits. Zero values leave a limit to the provider.
type Options struct {
	// Resources are the default limits, as far as the provider can enforce them.
	Resources atoll.Resources
	// IdleStop is the default of Spec.IdleStop if the provider has Caps.IdleStop. IdleRemove
	// applies only to sandboxes that get this default.
	IdleStop   atoll.Duration
	IdleRemove bool
	// CachePaths are additional cache paths for sandboxes with Spec.Cache.
	CachePaths []string
	// Lifetime is the maximum lifetime of a sandbox, and the default of Spec.TTL.
	Lifetime atoll.Duration
}

type provider struct {
	atoll.ProviderLayer
	opts Options
	caps atoll.Caps
}

// New returns a layer around p, which Close closes. All sandboxes of p must have the same Caps:
// wrap each member of a Combiner separately.
func New(p atoll.Provider, opts Options) atoll.Provider {
	return &provider{atoll.ProviderLayer{Provider: p}, opts, p.Info().Caps}
}

// Create implements atoll.Provider. In addition to the provider's kinds it returns ErrInvalid if
// the TTL exceeds the Lifetime.
func (p *provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	c, err := p.applyLimits(spec)
	if err != nil {
		return nil, err
	}
	sb, err := p.Provider.Create(ctx, c)
	return p.wrapSandbox(sb), err
}

// Reserve implements atoll.Reserver.
func (p *provider) Reserve(ctx context.Context, spec *atoll.Spec) (string, error) {
	c, err := p.applyLimits(spec)
	if err != nil {
		return "", err
	}
	return atoll.Reserve(ctx, p.Provider, c)
}

// applyLimits returns a copy of spec with the limits applied.
func (p *provider) applyLimits(spec *atoll.Spec) (*atoll.Spec, error) {
	c := *spec
	p.opts.Fill(&c, p.caps)
	if limit := p.opts.Lifetime; limit > 0 && c.TTL > limit {
		return nil, atoll.Errorf("create", c.Name, atoll.ErrInvalid, "ttl %s: exceeds the maximum lifetime of %s", c.TTL, limit)
	}
	return &c, nil
}

// Fill sets the defaults in spec that a provider with caps supports, as the layer does.
func (o *Options) Fill(spec *atoll.Spec, caps atoll.Caps) {
	r, defaults := &spec.Resources, &o.Resources
	if r.Memory == 0 && caps.MemoryLimit {
		r.Memory = defaults.Memory
	}
	if r.CPUs == 0 && caps.CPULimit {
		r.CPUs = defaults.CPUs
	}
	if r.Processes == 0 && caps.ProcessLimit {
		r.Processes = defaults.Processes
	}
	if r.Disk == 0 && (caps.DiskLimit || caps.DiskWatch) {
		r.Disk = defaults.Disk
	}
	if spec.Cache && caps.Cache {
		spec.CachePaths = slices.Clone(spec.CachePaths)
		for _, path := range o.CachePaths {
			if !slices.Contains(spec.CachePaths, path) { // a recreated sandbox has them already
				spec.CachePaths = append(spec.CachePaths, path)
			}
		}
	}
	if spec.IdleStop == 0 && caps.IdleStop {
		spec.IdleStop = o.IdleStop
		spec.IdleRemove = spec.IdleRemove || o.IdleRemove && spec.IdleStop != atoll.Never
	}
	if o.Lifetime > 0 {
		spec.TTL = cmp.Or(spec.TTL, o.Lifetime)
	}
}

// Get implements atoll.Provider.
func (p *provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := p.Provider.Get(ctx, id)
	return p.wrapSandbox(sb), err
}

func (p *provider) wrapSandbox(sb atoll.Sandbox) atoll.Sandbox {
	if sb == nil || p.opts.Lifetime <= 0 {
		return sb
	}
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, p.opts.Lifetime}
}

type sandbox struct {
	atoll.SandboxLayer
	lifetime atoll.Duration
}

// Extend implements atoll.Extender.
func (s *sandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	st, err := s.Status(ctx)
	if err != nil {
		return err
	}
	latest := st.Created.Add(time.Duration(s.lifetime))
	if ttl == atoll.Never || time.Now().Add(time.Duration(ttl)).After(latest) {
		return atoll.Errorf("extend", s.ID(), atoll.ErrInvalid, "exceeds the maximum lifetime of %s, which ends at %s",
			s.lifetime, latest.Format(time.RFC3339))
	}
	return atoll.Extend(ctx, s.Sandbox, ttl)
}
