package stack

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/layer/pool"
)

// templateSpec returns the spec of a pool of a template's sandboxes. It has no project unless the template sets one,
// like the requests of conversations.
func templateSpec(t *template.Template) (*atoll.Spec, error) {
	if t.Volume != "" {
		return nil, fmt.Errorf("template %s: its sandboxes have volumes with names of their own, so a pool is not possible", t.Name)
	}
	return t.SpecFor(template.Names{})
}

// providerOf returns the provider that creates the sandboxes of a spec.
func (b *Builder) providerOf(given string, s *atoll.Spec) string {
	projects, _ := b.ParseProjectProviders() // Load has checked them
	return cmp.Or(given, projects[cmp.Or(s.Project, atoll.DefaultProject)], b.Provider)
}

// A poolEntry is a complete pool and its provider.
type poolEntry struct {
	provider string
	entry    pool.Entry
}

// poolEntries returns the entries of all pools, sorted by name.
func (b *Builder) poolEntries() (all []poolEntry, err error) {
	var templates *template.Set
	for _, name := range slices.Sorted(maps.Keys(b.Pools)) {
		p := b.Pools[name]
		var s *atoll.Spec
		given := p.Provider
		if p.Template == "" {
			s, err = p.SandboxSpec(b.Config)
		} else {
			if templates == nil {
				if templates, err = b.Templates(); err != nil {
					return nil, err
				}
			}
			var t *template.Template
			if t, err = templates.Get(p.Template, ""); err == nil {
				given = t.Provider
				s, err = templateSpec(t)
			}
		}
		if err != nil {
			return nil, atoll.Errorf("open", name, atoll.ErrInvalid, "%s: %w", config.DescribeOrigin(b.Origin("pool."+name+".size"), "pool."+name), err)
		}
		maker := b.providerOf(given, s)
		if !slices.Contains(b.ProviderNames(), maker) {
			return nil, atoll.Errorf("open", name, atoll.ErrInvalid, "pool %s: the provider %q is not among %s: add it to providers", name, maker, strings.Join(b.ProviderNames(), ", "))
		}
		s.Provider = ""
		all = append(all, poolEntry{maker, pool.Entry{Name: name, Spec: *s, Min: p.Size}})
	}
	return all, nil
}

// stockProvider returns the provider that boots sandboxes ahead of need, for the setting warm; "" if none does.
func (b *Builder) stockProvider() string {
	maker := b.providerOf("", &atoll.Spec{Project: b.Project})
	if e, _ := config.BuiltIn(maker); !b.Warm || !e.Light {
		return ""
	}
	return maker
}

// stockOf returns the most sandboxes that a provider boots ahead of need.
func (b *Builder) stockOf(provider string, opts Options) int {
	if opts.Server && b.stockProvider() == provider {
		return stockSize()
	}
	return 0
}

// stockSize returns the most sandboxes that boot ahead of need.
func stockSize() int { return max(1, int(min(machineMemory()/20/warmMemory, mostWarm))) }

const (
	warmMemory = 32 << 20 // bytes that a warm sandbox may need
	mostWarm   = 16       // most warm sandboxes of the setting warm
)

// hasRoom reports whether a fifth of this machine's memory is available, or whether that is unknown.
func hasRoom() bool {
	available, total := availableMemory(), machineMemory()
	return available == 0 || available >= total/5
}

// hasStock reports whether the store has warm or claimed sandboxes of a provider. A program that was killed may have
// left them.
func hasStock(b *Builder, provider string) bool {
	s := openStore(b)
	all, err := s.Warm(context.Background(), provider)
	_ = s.Close() // later writes report errors of the store
	return err != nil || len(all) > 0
}

// newPool wraps the pool layer around p. A server fills its pools; other programs only know claimed sandboxes.
func newPool(p atoll.Provider, b *Builder, opts Options, all []poolEntry, stock func() atoll.Stock) (atoll.Provider, error) {
	info := p.Info()
	e, _ := config.BuiltIn(info.Name)
	o := pool.Options{Server: opts.Server, Log: opts.Log, Image: e.DefaultImage(b.Config), MaxCreations: b.PoolCreations, Stock: stock}
	limits := b.limitOptions()
	for _, s := range all {
		if s.provider != info.Name {
			continue
		}
		if s.entry.Spec.IdleRemove && !info.Caps.IdleStop {
			return nil, atoll.Errorf("open", s.entry.Name, atoll.ErrInvalid, "pool %s: the provider %s does not detect idle sandboxes, which a pool for %s requires", s.entry.Name, info.Name, b.Pools[s.entry.Name].For)
		}
		limits.Fill(&s.entry.Spec, info.Caps)
		o.Entries = append(o.Entries, s.entry)
	}
	return pool.New(p, openStore(b), o)
}
