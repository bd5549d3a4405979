package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer"
	"github.com/seed46cd37a8/atoll/layer/audit"
	"github.com/seed46cd37a8/atoll/layer/limit"
	"github.com/seed46cd37a8/atoll/layer/router"
	"github.com/seed46cd37a8/atoll/layer/trace"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

// Options are what a stack is given by the program around it.
type Options struct {
	Log     *slog.Logger                          // what providers have to say; nil means nowhere
	Calls   *slog.Logger                          // a record for each call; nil means nowhere
	Attrs   func(ctx context.Context) []slog.Attr // as in trace.Options
	Metrics *trace.Metrics                        // nil means that nothing is counted
	Traces  *trace.Traces                         // nil means that there are no spans
	Audit   *AuditLog                             // who has done what is written there; nil means nowhere
	Server  bool                                  // the program serves others for long: it may prepare for the next sandbox
}

// Open builds the stack that cfg describes: each provider with the layers of layer.Each, a router
// over all of them, and the layers of layer.All. It chooses the default provider once, with
// cfg.Choose, and logs if that is not the preferred one. Closing the stack closes its layers from
// the outside in, but not the audit log, the metrics and the traces, which remain the caller's.
func Open(cfg *Config, opts Options) (atoll.Provider, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	choice := cfg.Choose(context.Background())
	cfg = cfg.chosen(choice)
	projects, err := cfg.projects()
	if err != nil {
		return nil, atoll.E("open", "project_providers", atoll.ErrInvalid, err)
	}
	var all []stock // others have gone before anybody asks
	if opts.Server {
		if all, err = cfg.stocks(); err != nil {
			return nil, err
		}
	}
	var members []router.Member
	for _, name := range cfg.ProviderNames() {
		entry, err := cfg.find(name)
		if err != nil {
			return nil, atoll.Errorf("open", "provider", atoll.ErrInvalid, "%w", err)
		}
		members = append(members, router.Member{
			Name: name, Open: func() (atoll.Provider, error) { return openMember(entry, cfg, opts, all) },
			Ahead: opts.Server && (slices.ContainsFunc(all, func(s stock) bool { return s.provider == name }) || hasStock(cfg, name)),
		})
	}
	p, err := router.New(members, router.Options{
		Dir: filepath.Join(cfg.StateDir, "providers"), Projects: projects, Known: makerOf(cfg), Eager: opts.Server, Log: opts.Log,
		Default: choice.tell(opts.Log, opts.Server),
	})
	if err != nil {
		return nil, err
	}
	wrappers := map[string]layer.Wrapper{
		"workspace":        layer.Always(func(p atoll.Provider) atoll.Provider { return workspace.New(p, cfg.workspaces()) }),
		"trace workspaces": layer.Always(func(p atoll.Provider) atoll.Provider { return trace.Workspaces(p, opts.traced()) }),
		"session":          layer.Always(func(p atoll.Provider) atoll.Provider { return newSessions(p, cfg, opts) }),
		"trace sessions":   layer.Always(func(p atoll.Provider) atoll.Provider { return trace.Sessions(p, opts.traced()) }),
		"authz":            layer.Always(func(p atoll.Provider) atoll.Provider { return cfg.newAuthz(p, projects, opts.Audit) }),
	}
	if opts.Audit != nil {
		wrappers["audit"] = layer.Always(func(p atoll.Provider) atoll.Provider { return audit.New(p, opts.Audit.Log) })
	}
	return layer.Wrap(p, layer.All, wrappers)
}

// traced is how calls are told.
func (o Options) traced() trace.Options {
	t := trace.Options{Log: o.Calls, Attrs: o.Attrs, Quiet: router.Aside}
	if o.Metrics != nil {
		t.MeterProvider = o.Metrics
	}
	if o.Traces != nil {
		t.TracerProvider = o.Traces
	}
	return t
}

func openMember(entry Entry, cfg *Config, opts Options, all []stock) (atoll.Provider, error) {
	p, err := entry.Open(cfg, opts)
	if err != nil {
		return nil, err
	}
	if err := cfg.settle(context.Background(), entry.Name, p); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return layer.Wrap(p, layer.Each, map[string]layer.Wrapper{
		"registry": layer.Always(func(p atoll.Provider) atoll.Provider { return newRegistry(p, openStore(cfg), cfg, opts) }),
		"pool":     func(p atoll.Provider) (atoll.Provider, error) { return newPool(p, cfg, opts, all) },
		"limit":    layer.Always(func(p atoll.Provider) atoll.Provider { return limit.New(p, cfg.limits()) }),
		"trace":    layer.Always(func(p atoll.Provider) atoll.Provider { return trace.New(p, opts.traced()) }),
	})
}

// find returns the provider called name: one of Atoll's, or that of a plugin.
func (c *Config) find(name string) (Entry, error) {
	if e, ok := builtIn(name); ok {
		return e, nil
	}
	if e, ok := c.pluginEntry(name); ok {
		return e, nil
	}
	var names []string
	for _, e := range Providers() {
		names = append(names, e.Name)
	}
	return Entry{}, fmt.Errorf("%q: use one of %s, or install the program atoll-%s beside atoll or in PATH", name, strings.Join(names, ", "), name)
}

// builtIn returns the provider of Atoll's that is called name.
func builtIn(name string) (Entry, bool) {
	for _, e := range Providers() {
		if e.Name == name {
			return e, true
		}
	}
	return Entry{}, false
}

// limits are what the configuration gives the sandboxes of a provider.
func (c *Config) limits() limit.Options {
	r := c.Resources
	return limit.Options{
		Resources:  atoll.Resources{Memory: r.Memory, CPUs: r.CPUs, Processes: r.Processes, Disk: r.Disk},
		IdleStop:   cmp.Or(c.IdleStop, atoll.Never),
		IdleRemove: c.IdleRemove,
		Lifetime:   c.Lifetime,
		CachePaths: c.CachePaths,
	}
}
