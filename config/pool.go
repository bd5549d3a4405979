package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
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

// SandboxSpec returns the spec of the pool's sandboxes.
func (p *Pool) SandboxSpec(cfg *Config) (*atoll.Spec, error) {
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
		idle, lifetime := cfg.SessionTimes()
		s.TTL, s.IdleStop = cmp.Or(p.TTL, max(lifetime, 0)), cmp.Or(p.IdleStop, idle)
		s.IdleRemove = s.IdleStop != atoll.Never
	}
	return s, s.Validate()
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
		if _, err := p.SandboxSpec(c); err != nil {
			var e *atoll.Error
			if errors.As(err, &e) && e.Err != nil {
				err = e.Err
			}
			bad(key+".size", fmt.Errorf("invalid pool: %w", err))
		}
	}
}
