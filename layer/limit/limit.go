// Package limit is a layer that gives the sandboxes which name no limits those of
// a configuration, and none of them more time than it allows.
package limit

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Options are what sandboxes get. What is zero is left to the provider.
type Options struct {
	// Resources are the limits of sandboxes that name none, where the provider
	// can enforce them.
	Resources atoll.Resources
	// IdleStop is that of sandboxes that say nothing of it, where the provider
	// has idle stop; IdleRemove is for these too.
	IdleStop   atoll.Duration
	IdleRemove bool
	// CachePaths are more of them for the sandboxes that have a Spec.Cache.
	CachePaths []string
	// Lifetime is how long any sandbox may live, and those do whose TTL is 0.
	Lifetime atoll.Duration
}

type provider struct {
	atoll.ProviderLayer
	opts Options
	caps atoll.Caps
}

// New returns a layer around p, which closes with it. The caps of p hold for all
// of its sandboxes: around providers that differ there is one layer for each.
func New(p atoll.Provider, opts Options) atoll.Provider {
	return &provider{atoll.ProviderLayer{Provider: p}, opts, p.Info().Caps}
}

// Create implements atoll.Provider. Kinds, besides those of the provider:
// ErrInvalid (a TTL of more than the lifetime).
func (p *provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	c, err := p.limited(spec)
	if err != nil {
		return nil, err
	}
	sb, err := p.Provider.Create(ctx, c)
	return p.sandbox(sb), err
}

// Reserve implements atoll.Reserver.
func (p *provider) Reserve(ctx context.Context, spec *atoll.Spec) (string, error) {
	c, err := p.limited(spec)
	if err != nil {
		return "", err
	}
	return atoll.Reserve(ctx, p.Provider, c)
}

// limited is what is asked for in place of spec.
func (p *provider) limited(spec *atoll.Spec) (*atoll.Spec, error) {
	c := *spec
	p.opts.Fill(&c, p.caps)
	if most := p.opts.Lifetime; most > 0 && c.TTL > most {
		return nil, atoll.Errorf("create", c.Name, atoll.ErrInvalid, "ttl %s: no sandbox may live for more than %s here", c.TTL, most)
	}
	return &c, nil
}

// Fill fills in what spec leaves open and a provider with these caps can do, as
// the layer does.
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
	if r.Disk == 0 && caps.DiskLimit {
		r.Disk = defaults.Disk
	}
	if spec.Cache && caps.Cache {
		spec.CachePaths = slices.Clone(spec.CachePaths)
		for _, path := range o.CachePaths {
			if !slices.Contains(spec.CachePaths, path) { // as of a sandbox that is made again
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
	return p.sandbox(sb), err
}

func (p *provider) sandbox(sb atoll.Sandbox) atoll.Sandbox {
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
	most := st.Created.Add(time.Duration(s.lifetime))
	if ttl == atoll.Never || time.Now().Add(time.Duration(ttl)).After(most) {
		return atoll.Errorf("extend", s.ID(), atoll.ErrInvalid, "no sandbox may live for more than %s here: this one until %s at most",
			s.lifetime, most.Format(time.RFC3339))
	}
	return atoll.Extend(ctx, s.Sandbox, ttl)
}
