package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer"
	"github.com/seed46cd37a8/atoll/layer/audit"
	"github.com/seed46cd37a8/atoll/layer/limit"
	"github.com/seed46cd37a8/atoll/layer/router"
	"github.com/seed46cd37a8/atoll/layer/system"
	"github.com/seed46cd37a8/atoll/layer/trace"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

// Options configure a stack.
type Options struct {
	Log     *slog.Logger                          // log of the providers; nil discards it
	Calls   *slog.Logger                          // gets a record for each call; nil discards it
	Attrs   func(ctx context.Context) []slog.Attr // as in trace.Options
	Metrics *trace.Metrics                        // nil means no metrics
	Traces  *trace.Traces                         // nil means no spans
	Audit   *AuditLog                             // gets the events of the audit log; nil discards them
	Server  bool                                  // the program serves others for a long time, so it may prepare sandboxes ahead of need
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
	cfg = cfg.withChoice(choice)
	projects, err := cfg.parseProjectProviders()
	if err != nil {
		return nil, atoll.E("open", "project_providers", atoll.ErrInvalid, err)
	}
	var all []poolEntry // other programs end too soon to fill pools
	if opts.Server {
		if all, err = cfg.poolEntries(); err != nil {
			return nil, err
		}
	}
	var members []router.Member
	for _, name := range cfg.ProviderNames() {
		entry, err := cfg.findProvider(name)
		if err != nil {
			return nil, atoll.Errorf("open", "provider", atoll.ErrInvalid, "%w", err)
		}
		members = append(members, router.Member{
			Name: name, Open: func() (atoll.Provider, error) { return openMember(entry, cfg, opts, all) },
			OpenEarly: opts.Server && (slices.ContainsFunc(all, func(s poolEntry) bool { return s.provider == name }) || hasStock(cfg, name)),
		})
	}
	p, err := router.New(members, router.Options{
		Dir: filepath.Join(cfg.StateDir, "providers"), Projects: projects, Locate: makerOf(cfg), Eager: opts.Server, Log: opts.Log,
		Default: choice.reportChoice(opts.Log, opts.Server),
	})
	if err != nil {
		return nil, err
	}
	wrappers := map[string]layer.Wrapper{
		"workspace":        layer.Always(func(p atoll.Provider) atoll.Provider { return workspace.New(p, cfg.workspaceOptions()) }),
		"trace workspaces": layer.Always(func(p atoll.Provider) atoll.Provider { return trace.Workspaces(p, opts.traceOptions()) }),
		"session":          layer.Always(func(p atoll.Provider) atoll.Provider { return newSessions(p, cfg, opts) }),
		"trace sessions":   layer.Always(func(p atoll.Provider) atoll.Provider { return trace.Sessions(p, opts.traceOptions()) }),
		"system":           layer.Always(func(p atoll.Provider) atoll.Provider { return system.New(p, system.Options{HostDirs: cfg.hostDirs()}) }),
		"authz":            layer.Always(func(p atoll.Provider) atoll.Provider { return cfg.newAuthz(p, projects, opts.Audit) }),
	}
	if opts.Audit != nil {
		wrappers["audit"] = layer.Always(func(p atoll.Provider) atoll.Provider { return audit.New(p, opts.Audit.Log) })
	}
	return layer.Wrap(p, layer.All, wrappers)
}

// hostDirs returns the directories of the host that users of projects must not learn.
func (c *Config) hostDirs() []string {
	dirs := []string{c.StateDir}
	if run := os.Getenv("XDG_RUNTIME_DIR"); run != "" {
		dirs = append(dirs, filepath.Join(run, "atoll"))
	}
	return dirs
}

// traceOptions returns the options of the trace layer.
func (o Options) traceOptions() trace.Options {
	t := trace.Options{Log: o.Calls, Attrs: o.Attrs, Quiet: router.IsOptional}
	if o.Metrics != nil {
		t.MeterProvider = o.Metrics
	}
	if o.Traces != nil {
		t.TracerProvider = o.Traces
	}
	return t
}

// openMember opens a provider and its layers. all has the entries of all pools.
func openMember(entry Entry, cfg *Config, opts Options, all []poolEntry) (atoll.Provider, error) {
	p, err := entry.Open(cfg, opts)
	if err != nil {
		return nil, err
	}
	if err := cfg.settlePlace(context.Background(), entry.Name, p); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return layer.Wrap(p, layer.Each, map[string]layer.Wrapper{
		"registry": layer.Always(func(p atoll.Provider) atoll.Provider { return newRegistry(p, openStore(cfg), cfg, opts) }),
		"pool":     func(p atoll.Provider) (atoll.Provider, error) { return newPool(p, cfg, opts, all) },
		"limit":    layer.Always(func(p atoll.Provider) atoll.Provider { return limit.New(p, cfg.limitOptions()) }),
		"trace":    layer.Always(func(p atoll.Provider) atoll.Provider { return trace.New(p, opts.traceOptions()) }),
	})
}

// findProvider returns the built-in provider or the plugin called name.
func (c *Config) findProvider(name string) (Entry, error) {
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

// builtIn returns the built-in provider called name.
func builtIn(name string) (Entry, bool) {
	for _, e := range Providers() {
		if e.Name == name {
			return e, true
		}
	}
	return Entry{}, false
}

// limitOptions returns the options of the limit layer.
func (c *Config) limitOptions() limit.Options {
	r := c.Resources
	return limit.Options{
		Resources:  atoll.Resources{Memory: r.Memory, CPUs: r.CPUs, Processes: r.Processes, Disk: r.Disk},
		IdleStop:   cmp.Or(c.IdleStop, atoll.Never),
		IdleRemove: c.IdleRemove,
		Lifetime:   c.Lifetime,
		CachePaths: c.CachePaths,
	}
}
