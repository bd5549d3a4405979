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

// A Pool says which sandboxes a server keeps running ahead of need. Who is to get
// one must ask for the same: what is left open here, and by whoever asks, is filled
// in for both from the same settings.
type Pool struct {
	Size      int            `yaml:"size" doc:"how many sandboxes are kept running until somebody asks for them"`
	For       string         `yaml:"for" form:"create run session" doc:"who is to get them: who creates sandboxes (create), runs a command in one of its own with atoll run (run), or opens a session, as atoll mcp does (session)"`
	Template  string         `yaml:"template" doc:"template of agents whose sandboxes they are: it says all that is not said of the size"`
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

// Whom a Pool is for.
const (
	forCreate  = "create"
	forRun     = "run"
	forSession = "session"
)

// RunIdle is when a sandbox goes that was ready for atoll run, should that be killed
// before it has removed it: when for so long nothing runs in it.
const RunIdle = atoll.Duration(time.Minute)

func (p *Pool) setDefaults() { p.Size, p.For = pool.DefaultMin, forCreate }

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
	switch p.For {
	case forRun:
		s.IdleStop, s.IdleRemove = cmp.Or(p.IdleStop, RunIdle), true
	case forSession:
		idle, lifetime := cfg.sessionTimes()
		s.TTL, s.IdleStop = cmp.Or(p.TTL, max(lifetime, 0)), cmp.Or(p.IdleStop, idle)
		s.IdleRemove = s.IdleStop != atoll.Never
	}
	return s, s.Validate()
}

// ofTemplate is the spec of a pool of a template's sandboxes. What conversations ask for
// is in no project unless the template says in which.
func (p *Pool) ofTemplate(t *template.Template) (*atoll.Spec, error) {
	if t.Volume != "" {
		return nil, fmt.Errorf("template %s: each of its sandboxes has a volume that is named after it, so none can be there before", t.Name)
	}
	return t.SpecFor(template.Names{})
}

// providerOf is what makes the sandboxes of a spec.
func (c *Config) providerOf(given string, s *atoll.Spec) string {
	projects, _ := c.projects() // checked by Load
	return cmp.Or(given, projects[cmp.Or(s.Project, atoll.DefaultProject)], c.Provider)
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
		if p.Template != "" {
			bare := &Pool{Size: p.Size, For: forCreate, Template: p.Template}
			if !reflect.DeepEqual(p, bare) {
				bad(key+".template", fmt.Errorf("%s says what its sandboxes are like: leave out all besides it but size", p.Template))
			}
			continue
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

// A stock is a Pool of which all is known.
type stock struct {
	provider string
	entry    pool.Entry
}

// stocks are those of all pools, by name.
func (c *Config) stocks() (all []stock, err error) {
	var templates *template.Set
	for _, name := range slices.Sorted(maps.Keys(c.Pools)) {
		p := c.Pools[name]
		var s *atoll.Spec
		given := p.Provider
		if p.Template == "" {
			s, err = p.spec(c)
		} else {
			if templates == nil {
				if templates, err = c.Templates(); err != nil {
					return nil, err
				}
			}
			var t *template.Template
			if t, err = templates.Get(p.Template, ""); err == nil {
				given = t.Provider
				s, err = p.ofTemplate(t)
			}
		}
		if err != nil {
			return nil, atoll.Errorf("open", name, atoll.ErrInvalid, "%s: %w", origin(c.Origin("pool."+name+".size"), "pool."+name), err)
		}
		maker := c.providerOf(given, s)
		if !slices.Contains(c.ProviderNames(), maker) {
			return nil, atoll.Errorf("open", name, atoll.ErrInvalid, "pool %s: the provider is %q, and there are %s: add it to providers", name, maker, strings.Join(c.ProviderNames(), ", "))
		}
		s.Provider = ""
		all = append(all, stock{maker, pool.Entry{Name: name, Spec: *s, Min: p.Size}})
	}
	return all, nil
}

// hasStock reports whether stock of a provider, or a claim, is written down: who was
// killed may have left it.
func hasStock(cfg *Config, provider string) bool {
	s := openStore(cfg)
	all, err := s.Warm(context.Background(), provider)
	_ = s.Close() // what is wrong with it, who writes to it is told
	return err != nil || len(all) > 0
}

// ownImage is what a provider calls the image of sandboxes that name none, as the tools
// of agents do: theirs are in no other pool than those of who says nothing.
func (c *Config) ownImage(provider string) string {
	switch provider {
	case "gvisor", "local":
		return "host"
	case "docker":
		return c.Docker.Image
	case "microvm":
		return c.MicroVM.Bundle
	case "vmdocker":
		return c.VMDocker.Image
	case "kubernetes":
		return c.Kubernetes.Image
	case "modal":
		return c.Modal.Image
	}
	return ""
}

// newPool puts pools around p: a server's are filled, and all programs know what
// was claimed.
func newPool(p atoll.Provider, cfg *Config, opts Options, all []stock) (atoll.Provider, error) {
	info := p.Info()
	o := pool.Options{Server: opts.Server, Log: opts.Log, Image: cfg.ownImage(info.Name)}
	limits := cfg.limits()
	for _, s := range all {
		if s.provider != info.Name {
			continue
		}
		if s.entry.Spec.IdleRemove && !info.Caps.IdleStop {
			return nil, atoll.Errorf("open", s.entry.Name, atoll.ErrInvalid, "pool %s: the provider %s cannot tell when nobody uses a sandbox, and so none is ready for %s", s.entry.Name, info.Name, cfg.Pools[s.entry.Name].For)
		}
		limits.Fill(&s.entry.Spec, info.Caps)
		o.Entries = append(o.Entries, s.entry)
	}
	return pool.New(p, openStore(cfg), o)
}
