// Package stack opens what a configuration describes: providers with their layers, stores, the audit log, conversations.
// It is the only package that imports all providers.
package stack

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/layer"
	"github.com/seed46cd37a8/atoll/layer/audit"
	"github.com/seed46cd37a8/atoll/layer/limit"
	"github.com/seed46cd37a8/atoll/layer/router"
	"github.com/seed46cd37a8/atoll/layer/system"
	"github.com/seed46cd37a8/atoll/layer/trace"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/storage/store/postgres"
)

// A Builder opens what a configuration describes.
type Builder struct {
	*config.Config
	server *postgres.Server // nil if the store is a file
}

// NewBuilder returns a Builder for cfg, and touches nothing. All stores that it opens share the connections to the
// database server, if the configuration names one. Kinds: ErrInvalid (store.url).
func NewBuilder(cfg *config.Config) (*Builder, error) {
	b := &Builder{Config: cfg}
	if cfg.Store.URL == "" {
		return b, nil
	}
	opts := postgres.Options{URL: cfg.Store.URL, Lease: time.Duration(cfg.Store.Lease)}
	if !cfg.Store.Password.IsZero() {
		opts.Password = cfg.Store.Password.Reveal
	}
	server, err := postgres.New(opts)
	if err != nil {
		if e, ok := errors.AsType[*atoll.Error](err); ok && e.Err != nil {
			err = e.Err
		}
		return nil, atoll.Errorf("config", "", atoll.ErrInvalid, "%s: %w", config.DescribeOrigin(cfg.Origin("store.url"), "store.url"), err)
	}
	b.server = server
	return b, nil
}

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

// Open builds the stack that b describes: each provider with the layers of layer.Each, a router
// over all of them, and the layers of layer.All. It chooses the default provider once, with
// b.Choose, and logs if that is not the preferred one. Closing the stack closes its layers from
// the outside in, but not the audit log, the metrics and the traces, which remain the caller's.
func (b *Builder) Open(opts Options) (atoll.Provider, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	choice := b.Choose(context.Background())
	b = b.withChoice(choice)
	projects, err := b.ParseProjectProviders()
	if err != nil {
		return nil, atoll.E("open", "project_providers", atoll.ErrInvalid, err)
	}
	var all []poolEntry // other programs end too soon to fill pools
	if opts.Server {
		if all, err = b.poolEntries(); err != nil {
			return nil, err
		}
	}
	var members []router.Member
	for _, name := range b.ProviderNames() {
		entry, err := b.FindProvider(name)
		if err != nil {
			return nil, atoll.Errorf("open", "provider", atoll.ErrInvalid, "%w", err)
		}
		members = append(members, router.Member{
			Name: name, Open: func() (atoll.Provider, error) { return openMember(entry, b, opts, all) },
			OpenEarly: opts.Server && (slices.ContainsFunc(all, func(s poolEntry) bool { return s.provider == name }) || hasStock(b, name) || name == b.stockProvider()),
		})
	}
	p, err := router.New(members, router.Options{
		Dir: filepath.Join(b.StateDir, "providers"), Projects: projects, Locate: makerOf(b), Eager: opts.Server, Log: opts.Log,
		Default: choice.reportChoice(opts.Log, opts.Server),
	})
	if err != nil {
		return nil, err
	}
	wrappers := map[string]layer.Wrapper{
		"workspace":        layer.Always(func(p atoll.Provider) atoll.Provider { return workspace.New(p, b.workspaceOptions()) }),
		"trace workspaces": layer.Always(func(p atoll.Provider) atoll.Provider { return trace.Workspaces(p, opts.traceOptions()) }),
		"session":          layer.Always(func(p atoll.Provider) atoll.Provider { return newSessions(p, b, opts) }),
		"trace sessions":   layer.Always(func(p atoll.Provider) atoll.Provider { return trace.Sessions(p, opts.traceOptions()) }),
		"system":           layer.Always(func(p atoll.Provider) atoll.Provider { return system.New(p, system.Options{HostDirs: b.hostDirs()}) }),
		"authz":            layer.Always(func(p atoll.Provider) atoll.Provider { return b.newAuthz(p, projects, opts.Audit) }),
	}
	if opts.Audit != nil {
		wrappers["audit"] = layer.Always(func(p atoll.Provider) atoll.Provider { return audit.New(p, opts.Audit.Log) })
	}
	return layer.Wrap(p, layer.All, wrappers)
}

// hostDirs returns the directories of the host that users of projects must not learn.
func (b *Builder) hostDirs() []string {
	dirs := []string{b.StateDir}
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
func openMember(entry config.Entry, b *Builder, opts Options, all []poolEntry) (atoll.Provider, error) {
	p, err := b.OpenProvider(entry, opts)
	if err != nil {
		return nil, err
	}
	var stock func() atoll.Stock
	if s, ok := p.(interface{ Stock() atoll.Stock }); ok && opts.Server && entry.Name == b.stockProvider() {
		stock = s.Stock
	}
	if err := b.settlePlace(context.Background(), entry.Name, p); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return layer.Wrap(p, layer.Each, map[string]layer.Wrapper{
		"registry": layer.Always(func(p atoll.Provider) atoll.Provider { return newRegistry(p, openStore(b), b, opts) }),
		"pool":     func(p atoll.Provider) (atoll.Provider, error) { return newPool(p, b, opts, all, stock) },
		"limit":    layer.Always(func(p atoll.Provider) atoll.Provider { return limit.New(p, b.limitOptions()) }),
		"trace":    layer.Always(func(p atoll.Provider) atoll.Provider { return trace.New(p, opts.traceOptions()) }),
	})
}

// limitOptions returns the options of the limit layer.
func (b *Builder) limitOptions() limit.Options {
	r := b.Resources
	return limit.Options{
		Resources:  atoll.Resources{Memory: r.Memory, CPUs: r.CPUs, Processes: r.Processes, Disk: r.Disk},
		IdleStop:   cmp.Or(b.IdleStop, atoll.Never),
		IdleRemove: b.IdleRemove,
		Lifetime:   b.Lifetime,
		CachePaths: b.CachePaths,
	}
}
