package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/pool"
)

// A Pool says which sandboxes a server keeps running ahead of need. Who is to get
// one must ask for the same: what is left open here, and by whoever asks, is filled
// in for both from the same settings.
type Pool struct {
	Size      int            `yaml:"size" doc:"how many sandboxes are kept running until somebody asks for them"`
	Provider  string         `yaml:"provider" doc:"what makes them; without, the provider of those who name none"`
	Project   string         `yaml:"project" doc:"project that they are for; without, that of those who name none"`
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
	TTL       atoll.Duration `yaml:"ttl" doc:"any, like 1h, for sandboxes of those who ask for a time to live; each gets its own"`
	IdleStop  atoll.Duration `yaml:"idle_stop" doc:"as in atoll create --idle-stop; without, that of those who say nothing of it"`
}

func (p *Pool) setDefaults() { p.Size = pool.DefaultMin }

// spec is what its sandboxes are made from.
func (p *Pool) spec(cfg *Config) (*atoll.Spec, error) {
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
	return s, s.Validate()
}

// provider is what makes the sandboxes of a pool.
func (c *Config) providerOf(p *Pool) string {
	projects, _ := c.projects() // checked by Load
	return cmp.Or(p.Provider, projects[cmp.Or(p.Project, c.Project)], c.Provider)
}

// checkPools calls bad with the key of each value that makes no sense.
func (c *Config) checkPools(bad func(key string, err error)) {
	for _, name := range slices.Sorted(maps.Keys(c.Pools)) {
		p := c.Pools[name]
		key := "pool." + name
		if p.Size <= 0 {
			bad(key+".size", fmt.Errorf("%d: must be positive: without a pool there are none", p.Size))
		}
		if p.Provider != "" && !slices.Contains(c.ProviderNames(), p.Provider) {
			bad(key+".provider", fmt.Errorf("%q: the providers are %s: add it to providers", p.Provider, strings.Join(c.ProviderNames(), ", ")))
		}
		if _, err := p.spec(c); err != nil {
			var e *atoll.Error
			if errors.As(err, &e) && e.Err != nil {
				err = e.Err
			}
			bad(key+".size", fmt.Errorf("the pool cannot be: %w", err))
		}
	}
}

// poolsOf are the names of the pools of a provider.
func (c *Config) poolsOf(provider string) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.Pools)) {
		if c.providerOf(c.Pools[name]) == provider {
			names = append(names, name)
		}
	}
	return names
}

// hasStock reports whether stock of a provider, or a claim, is written down: who was
// killed may have left it.
func hasStock(cfg *Config, provider string) bool {
	s := openStore(cfg)
	all, err := s.Warm(context.Background(), provider)
	_ = s.Close() // what is wrong with it, who writes to it is told
	return err != nil || len(all) > 0
}

// newPool puts pools around p: a server's are filled, and all programs know what
// was claimed.
func newPool(p atoll.Provider, cfg *Config, opts Options) (atoll.Provider, error) {
	o := pool.Options{Server: opts.Server, Log: opts.Log}
	if opts.Server {
		limits := cfg.limits()
		for _, name := range cfg.poolsOf(p.Info().Name) {
			spec, err := cfg.Pools[name].spec(cfg)
			if err != nil {
				return nil, errors.Join(err, p.Close())
			}
			limits.Fill(spec, p.Info().Caps)
			o.Entries = append(o.Entries, pool.Entry{Name: name, Spec: *spec, Min: cfg.Pools[name].Size})
		}
	}
	l, err := pool.New(p, openStore(cfg), o)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return l, nil
}
