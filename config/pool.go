package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/layer/pool"
)

// A Pool configures warm sandboxes of a server. A request must have the spec of the pool to get one. The same
// settings fill the empty fields of both.
type Pool struct {
	Size      int            `yaml:"size" doc:"number of warm sandboxes"`
	For       string         `yaml:"for" form:"create run session" doc:"requests that get the sandboxes: of a new sandbox (create), of a command with atoll run (run), or of a session, such as those of atoll mcp (session)"`
	Template  string         `yaml:"template" doc:"template of agents whose sandboxes the pool has; with it, only size can be set"`
	Provider  string         `yaml:"provider" doc:"provider of the sandboxes; empty means the default provider"`
	Project   string         `yaml:"project" doc:"project of the sandboxes; empty means the default project"`
	Image     string         `yaml:"image" doc:"as in atoll create --image"`
	Workdir   string         `yaml:"workdir" doc:"as in atoll create --workdir"`
	User      string         `yaml:"user" doc:"as in atoll create --user"`
	Env       []string       `yaml:"env" doc:"as in atoll create --env"`
	Memory    atoll.Bytes    `yaml:"memory" doc:"as in atoll create --memory"`
	CPUs      float64        `yaml:"cpus" doc:"as in atoll create --cpus"`
	Processes int            `yaml:"processes" doc:"as in atoll create --pids"`
	Disk      atoll.Bytes    `yaml:"disk" doc:"as in atoll create --disk"`
	Network   string         `yaml:"network" doc:"none, on, egress, or named:NAME"`
	Allow     []string       `yaml:"allow" doc:"as in atoll create --allow"`
	Cache     bool           `yaml:"cache" doc:"as in atoll create --cache"`
	TTL       atoll.Duration `yaml:"ttl" doc:"any value, like 1h, if requests have a time to live; each sandbox gets that of its request"`
	IdleStop  atoll.Duration `yaml:"idle_stop" doc:"as in atoll create --idle-stop; empty means the default"`
}

// Values of Pool.For.
const (
	forCreate  = "create"
	forRun     = "run"
	forSession = "session"
)

// RunIdleTimeout is the time after which an idle sandbox of a pool for atoll run is removed, in case atoll run is killed
// before it can do so.
const RunIdleTimeout = atoll.Duration(time.Minute)

func (p *Pool) setDefaults() { p.Size, p.For = pool.DefaultMin, forCreate }

// sandboxSpec returns the spec of the pool's sandboxes.
func (p *Pool) sandboxSpec(cfg *Config) (*atoll.Spec, error) {
	s := &atoll.Spec{
		Project: cmp.Or(p.Project, cfg.Project), Image: p.Image, Workdir: p.Workdir, User: p.User, Env: slices.Clone(p.Env),
		Resources: atoll.Resources{Memory: p.Memory, CPUs: p.CPUs, Processes: p.Processes, Disk: p.Disk},
		Network:   atoll.Network{Allow: slices.Clone(p.Allow)}, Cache: p.Cache, TTL: p.TTL, IdleStop: p.IdleStop,
	}
	mode, name, named := strings.Cut(p.Network, ":")
	switch {
	case named && atoll.NetworkMode(mode) == atoll.NetworkNamed:
		s.Network.Mode, s.Network.Name = atoll.NetworkNamed, name
	case named:
		return nil, fmt.Errorf("network %q: use none, on, egress, or named:NAME", p.Network)
	case p.Network == "" && len(p.Allow) > 0:
		s.Network.Mode = atoll.NetworkEgress
	default:
		s.Network.Mode = atoll.NetworkMode(mode)
	}
	switch p.For {
	case forRun:
		s.IdleStop, s.IdleRemove = cmp.Or(p.IdleStop, RunIdleTimeout), true
	case forSession:
		idle, lifetime := cfg.sessionTimes()
		s.TTL, s.IdleStop = cmp.Or(p.TTL, max(lifetime, 0)), cmp.Or(p.IdleStop, idle)
		s.IdleRemove = s.IdleStop != atoll.Never
	}
	return s, s.Validate()
}

// templateSpec returns the spec of a pool of a template's sandboxes. It has no project unless the template sets one,
// like the requests of conversations.
func (p *Pool) templateSpec(t *template.Template) (*atoll.Spec, error) {
	if t.Volume != "" {
		return nil, fmt.Errorf("template %s: its sandboxes have volumes with names of their own, so a pool is not possible", t.Name)
	}
	return t.SpecFor(template.Names{})
}

// providerOf returns the provider that creates the sandboxes of a spec.
func (c *Config) providerOf(given string, s *atoll.Spec) string {
	projects, _ := c.parseProjectProviders() // Load has checked them
	return cmp.Or(given, projects[cmp.Or(s.Project, atoll.DefaultProject)], c.Provider)
}

// checkPools calls bad with the key of each invalid value.
func (c *Config) checkPools(bad func(key string, err error)) {
	if c.PoolCreations < 1 {
		bad("pool_creations", fmt.Errorf("%d: must be positive", c.PoolCreations))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Pools)) {
		p := c.Pools[name]
		key := "pool." + name
		if p.Size <= 0 {
			bad(key+".size", fmt.Errorf("%d: must be positive: to have no warm sandboxes, remove the pool", p.Size))
		}
		if p.Provider != "" && !slices.Contains(c.ProviderNames(), p.Provider) {
			bad(key+".provider", fmt.Errorf("%q: the providers are %s: add it to providers", p.Provider, strings.Join(c.ProviderNames(), ", ")))
		}
		if p.Template != "" {
			bare := &Pool{Size: p.Size, For: forCreate, Template: p.Template}
			if !reflect.DeepEqual(p, bare) {
				bad(key+".template", fmt.Errorf("the template %s has all settings of the sandboxes: set only size besides", p.Template))
			}
			continue
		}
		if _, err := p.sandboxSpec(c); err != nil {
			var e *atoll.Error
			if errors.As(err, &e) && e.Err != nil {
				err = e.Err
			}
			bad(key+".size", fmt.Errorf("invalid pool: %w", err))
		}
	}
}

// A poolEntry is a complete pool and its provider.
type poolEntry struct {
	provider string
	entry    pool.Entry
}

// poolEntries returns the entries of all pools, sorted by name.
func (c *Config) poolEntries() (all []poolEntry, err error) {
	var templates *template.Set
	for _, name := range slices.Sorted(maps.Keys(c.Pools)) {
		p := c.Pools[name]
		var s *atoll.Spec
		given := p.Provider
		if p.Template == "" {
			s, err = p.sandboxSpec(c)
		} else {
			if templates == nil {
				if templates, err = c.Templates(); err != nil {
					return nil, err
				}
			}
			var t *template.Template
			if t, err = templates.Get(p.Template, ""); err == nil {
				given = t.Provider
				s, err = p.templateSpec(t)
			}
		}
		if err != nil {
			return nil, atoll.Errorf("open", name, atoll.ErrInvalid, "%s: %w", describeOrigin(c.Origin("pool."+name+".size"), "pool."+name), err)
		}
		maker := c.providerOf(given, s)
		if !slices.Contains(c.ProviderNames(), maker) {
			return nil, atoll.Errorf("open", name, atoll.ErrInvalid, "pool %s: the provider %q is not among %s: add it to providers", name, maker, strings.Join(c.ProviderNames(), ", "))
		}
		s.Provider = ""
		all = append(all, poolEntry{maker, pool.Entry{Name: name, Spec: *s, Min: p.Size}})
	}
	return all, nil
}

// hasStock reports whether the store has warm or claimed sandboxes of a provider. A program that was killed may have
// left them.
func hasStock(cfg *Config, provider string) bool {
	s := openStore(cfg)
	all, err := s.Warm(context.Background(), provider)
	_ = s.Close() // later writes report errors of the store
	return err != nil || len(all) > 0
}

// newPool wraps the pool layer around p. A server fills its pools; other programs only know claimed sandboxes.
func newPool(p atoll.Provider, cfg *Config, opts Options, all []poolEntry) (atoll.Provider, error) {
	info := p.Info()
	e, _ := builtIn(info.Name)
	o := pool.Options{Server: opts.Server, Log: opts.Log, Image: e.defaultImage(cfg), MaxCreations: cfg.PoolCreations}
	limits := cfg.limitOptions()
	for _, s := range all {
		if s.provider != info.Name {
			continue
		}
		if s.entry.Spec.IdleRemove && !info.Caps.IdleStop {
			return nil, atoll.Errorf("open", s.entry.Name, atoll.ErrInvalid, "pool %s: the provider %s does not detect idle sandboxes, which a pool for %s requires", s.entry.Name, info.Name, cfg.Pools[s.entry.Name].For)
		}
		limits.Fill(&s.entry.Spec, info.Caps)
		o.Entries = append(o.Entries, s.entry)
	}
	return pool.New(p, openStore(cfg), o)
}
