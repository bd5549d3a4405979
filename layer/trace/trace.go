// Package trace is a layer that tells what a provider does: structured logs,
// OpenTelemetry spans and metrics. It is the only package that knows
// OpenTelemetry.
//
//	metrics, err := trace.NewMetrics()
//	...
//	traces := trace.NewTraces(ctx, trace.TracesOptions{Log: log})
//	p = trace.New(p, trace.Options{Log: log, TracerProvider: traces, MeterProvider: metrics})
//	mux.Handle("GET /metrics", metrics)
//
// Each call is one log record with the verb as its message, one span
// ("atoll.create"), and one count in
//
//	atoll_calls_total{provider,op,kind}   kind is "ok" when there was no error
//	atoll_call_seconds{provider,op}
//	atoll_sandboxes{provider,state}       counted when they are asked for
//	atoll_pool_sandboxes{provider,pool}   those that run ahead of need, likewise
//	atoll_pool_total{provider,pool,event} hit, miss, created, destroyed
//
// A trace goes on from program to program where the hooks of package api are
// Extract and Inject: the spans of a server are children of its client's.
//
// Ids are in logs and spans, never in the labels of metrics. What is typed,
// printed or stored in a sandbox and the values of environment variables are
// in none of them; the arguments of commands and the names of files are in
// logs only: of level Debug, and in the text of an error that has to do with
// them.
package trace

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	oteltrace "go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

// Options say where to tell it; what is nil is not told.
type Options struct {
	// Log gets a record per call: Info for what changes a sandbox's life, Debug
	// for everything else, Warn for failures that may pass, Error for faults of
	// Atoll or its backend.
	Log *slog.Logger
	// Attrs says what else is known, by its ctx, of a call: each record has it.
	Attrs func(ctx context.Context) []slog.Attr
	// Quiet says, by its ctx, that the outcome of a call is of no interest: its
	// record is of level Debug, whatever became of it.
	Quiet          func(ctx context.Context) bool
	TracerProvider oteltrace.TracerProvider
	MeterProvider  metric.MeterProvider
}

// scope names this package to OpenTelemetry.
const scope = "github.com/seed46cd37a8/atoll/layer/trace"

// New returns p with every call told. Its Close closes p.
func New(p atoll.Provider, opts Options) atoll.Provider {
	t, meter := newTracer(p.Info().Name, opts)
	t.gauge(meter, p)
	return &provider{atoll.ProviderLayer{Provider: p}, t}
}

// Workspaces returns p with the calls told that are about workspaces, under the
// name "workspace" in place of a provider's: for a layer that keeps them around
// providers which are told of already. Its Close closes p.
func Workspaces(p atoll.Provider, opts Options) atoll.Provider {
	t, _ := newTracer("workspace", opts)
	layer := atoll.ProviderLayer{Provider: p}
	return &workspaces{layer, &provider{layer, t}}
}

// Sessions is Workspaces for sessions, under the name "session".
func Sessions(p atoll.Provider, opts Options) atoll.Provider {
	t, _ := newTracer("session", opts)
	layer := atoll.ProviderLayer{Provider: p}
	return &sessions{layer, &provider{layer, t}}
}

func newTracer(name string, opts Options) (*tracer, metric.Meter) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Attrs == nil {
		opts.Attrs = func(context.Context) []slog.Attr { return nil }
	}
	if opts.Quiet == nil {
		opts.Quiet = func(context.Context) bool { return false }
	}
	if opts.TracerProvider == nil {
		opts.TracerProvider = nooptrace.NewTracerProvider()
	}
	if opts.MeterProvider == nil {
		opts.MeterProvider = noopmetric.NewMeterProvider()
	}
	t := &tracer{
		name:  name,
		log:   opts.Log.With("provider", name),
		known: opts.Attrs,
		quiet: opts.Quiet,
		otel:  opts.TracerProvider.Tracer(scope),
	}
	meter := opts.MeterProvider.Meter(scope)
	t.meters(meter)
	return t, meter
}

// A tracer tells of calls.
type tracer struct {
	name  string // of the provider
	log   *slog.Logger
	known func(ctx context.Context) []slog.Attr
	quiet func(ctx context.Context) bool
	otel  oteltrace.Tracer

	calls      metric.Int64Counter
	seconds    metric.Float64Histogram
	unregister func() error // of the gauge
}

// buckets suit calls that take from a tenth of a millisecond to minutes.
var buckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

// meters makes the instruments. The names are valid, so that an error is one
// of the meter provider's own, whose instruments work all the same.
func (t *tracer) meters(m metric.Meter) {
	var err, errs error
	t.calls, err = m.Int64Counter("atoll_calls", metric.WithDescription("Calls of the provider, by verb and kind of error."))
	errs = errors.Join(errs, err)
	t.seconds, err = m.Float64Histogram("atoll_call_seconds", metric.WithDescription("How long calls took."),
		metric.WithExplicitBucketBoundaries(buckets...))
	t.faulty(errors.Join(errs, err))
}

// gauge counts the sandboxes of p.
func (t *tracer) gauge(m metric.Meter, p atoll.Provider) {
	sandboxes, errs := m.Int64ObservableGauge("atoll_sandboxes", metric.WithDescription("Sandboxes that exist, by state."))
	reg, err := m.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		return countSandboxes(ctx, p, func(n int64, attrs ...attribute.KeyValue) {
			o.ObserveInt64(sandboxes, n, metric.WithAttributes(attrs...))
		})
	}, sandboxes)
	errs = errors.Join(errs, err)
	pools, err := m.Int64ObservableGauge("atoll_pool_sandboxes", metric.WithDescription("Sandboxes that run ahead of need."))
	errs = errors.Join(errs, err)
	events, err := m.Int64ObservableCounter("atoll_pool", metric.WithDescription("What became of the sandboxes of pools, and of creations that could have had one."))
	errs = errors.Join(errs, err)
	poolReg, err := m.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		report, err := pool.ReportOf(ctx, p)
		for _, one := range report.Pools {
			of := []attribute.KeyValue{attribute.String("provider", one.Provider), attribute.String("pool", one.Name)}
			o.ObserveInt64(pools, int64(one.Warm), metric.WithAttributes(of...))
			for event, n := range map[string]int64{"hit": one.WarmHits, "miss": one.ColdMisses, "created": one.Created, "destroyed": one.Destroyed} {
				o.ObserveInt64(events, n, metric.WithAttributes(append(of[:2:2], attribute.String("event", event))...))
			}
		}
		return err
	}, pools, events)
	t.faulty(errors.Join(errs, err))
	t.unregister = func() error { return nil }
	if reg != nil && poolReg != nil {
		t.unregister = func() error { return errors.Join(reg.Unregister(), poolReg.Unregister()) }
	}
}

func (t *tracer) faulty(err error) {
	if err != nil {
		t.log.Warn("metrics", "err", err)
	}
}

// countSandboxes reports how many sandboxes are in each state, by provider.
func countSandboxes(ctx context.Context, p atoll.Provider, report func(n int64, attrs ...attribute.KeyValue)) error {
	all, err := p.List(ctx, atoll.Filter{})
	if err != nil {
		return err
	}
	type key struct {
		provider string
		state    atoll.State
	}
	count := map[key]int64{}
	for _, st := range all {
		count[key{st.Provider, st.State}]++
	}
	for k, n := range count {
		report(n, attribute.String("provider", k.provider), attribute.String("state", string(k.state)))
	}
	return nil
}

// A call is one that is being made.
type call struct {
	t     *tracer
	op    string
	level slog.Level // when it succeeds
	begun time.Time
	span  oteltrace.Span
	attrs []slog.Attr
}

// begin starts to tell of a step, a call that changes no sandbox's life. An
// empty id is left out. The caller calls end.
func (t *tracer) begin(ctx context.Context, op, sandbox, process string) (context.Context, *call) {
	ctx, span := t.otel.Start(ctx, "atoll."+op, oteltrace.WithAttributes(attribute.String("atoll.provider", t.name)))
	c := &call{t: t, op: op, level: slog.LevelDebug, begun: time.Now(), span: span}
	c.id("sandbox", sandbox)
	c.id("process", process)
	return ctx, c
}

// event is begin for what does change a sandbox's life.
func (t *tracer) event(ctx context.Context, op, sandbox string) (context.Context, *call) {
	ctx, c := t.begin(ctx, op, sandbox, "")
	c.level = slog.LevelInfo
	return ctx, c
}

// id adds the id of what the call is about to its log record and its span.
func (c *call) id(key, id string) {
	if id == "" {
		return
	}
	c.attrs = append(c.attrs, slog.String(key, id))
	c.span.SetAttributes(attribute.String("atoll."+key, id))
}

// end tells how the call ended. details are logged at level Debug only.
func (c *call) end(ctx context.Context, err error, details ...slog.Attr) {
	defer c.span.End()
	dur, kind := time.Since(c.begun), kindOf(err)
	ctx = context.WithoutCancel(ctx) // the telling outlives what it tells of
	provider, op := attribute.String("provider", c.t.name), attribute.String("op", c.op)
	c.t.calls.Add(ctx, 1, metric.WithAttributes(provider, op, attribute.String("kind", kind)))
	c.t.seconds.Record(ctx, dur.Seconds(), metric.WithAttributes(provider, op))

	attrs := append([]slog.Attr{slog.String("op", c.op)}, c.attrs...)
	attrs = append(attrs, c.t.known(ctx)...)
	if of := c.span.SpanContext(); of.HasTraceID() {
		attrs = append(attrs, slog.String("trace", of.TraceID().String()))
	}
	attrs = append(attrs, slog.Duration("dur", dur))
	level := c.level
	if err != nil {
		level = severity(err, level)
		attrs = append(attrs, slog.String("kind", kind), slog.Any("err", err))
		c.span.SetAttributes(attribute.String("atoll.kind", kind))
		c.span.SetStatus(codes.Error, kind) // an error's text may hold names of files
	}
	if c.t.quiet(ctx) {
		level = slog.LevelDebug
	}
	if c.t.log.Enabled(ctx, slog.LevelDebug) {
		attrs = append(attrs, details...)
	}
	c.t.log.LogAttrs(ctx, level, c.op, attrs...)
}

// kindOf is the error's kind as a label.
func kindOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return string(atoll.KindOf(err))
}

// severity is how loud a failure is. That callers ask for what is not there or
// give up waiting is part of life.
func severity(err error, level slog.Level) slog.Level {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return level
	}
	switch atoll.KindOf(err) {
	case atoll.ErrInternal:
		return slog.LevelError
	case atoll.ErrUnavailable, atoll.ErrExhausted, atoll.ErrTimeout:
		return slog.LevelWarn
	}
	return level
}

// provider is the layer.
type provider struct {
	atoll.ProviderLayer
	t *tracer
}

func (p *provider) Info() atoll.Info { return p.Provider.Info() }

func (p *provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	ctx, c := p.t.event(ctx, "create", "")
	sb, err := p.Provider.Create(ctx, spec)
	if err != nil {
		c.id("sandbox", spec.ID)
		c.end(ctx, err, slog.String("name", spec.Name))
		return nil, err
	}
	c.id("sandbox", sb.ID())
	c.end(ctx, nil, slog.String("name", spec.Name), slog.String("image", spec.Image), slog.Any("args", spec.Cmd))
	return p.t.sandbox(sb), nil
}

func (p *provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	ctx, c := p.t.begin(ctx, "get", id, "")
	sb, err := p.Provider.Get(ctx, id)
	c.end(ctx, err)
	if err != nil {
		return nil, err
	}
	return p.t.sandbox(sb), nil
}

func (p *provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	ctx, c := p.t.begin(ctx, "list", "", "")
	all, err := p.Provider.List(ctx, f)
	c.end(ctx, err, slog.Int("n", len(all)))
	return all, err
}

// Watch tells of the whole watch when it ends.
func (p *provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		ctx, c := p.t.begin(ctx, "watch", "", "")
		var last error
		defer func() { c.end(ctx, last) }()
		for ev, err := range p.Provider.Watch(ctx) {
			last = err
			if !yield(ev, err) {
				return
			}
		}
	}
}

func (p *provider) Close() error {
	return errors.Join(p.t.unregister(), p.Provider.Close())
}

func (p *provider) Resolve(ctx context.Context, project, name string) (string, error) {
	ctx, c := p.t.begin(ctx, "resolve", "", "")
	id, err := atoll.ResolveID(ctx, p.Provider, project, name)
	c.id("sandbox", id)
	c.end(ctx, err, slog.String("name", name))
	return id, err
}

func (p *provider) Members(ctx context.Context) ([]atoll.Member, error) {
	ctx, c := p.t.begin(ctx, "members", "", "")
	all, err := atoll.Members(ctx, p.Provider)
	c.end(ctx, err, slog.Int("n", len(all)))
	return all, err
}

func (p *provider) Probe(ctx context.Context) atoll.Probe {
	ctx, c := p.t.begin(ctx, "probe", "", "")
	probe := atoll.ProbeProvider(ctx, p.Provider)
	c.end(ctx, nil, slog.Bool("ok", probe.OK), slog.String("reason", probe.Reason))
	return probe
}

func (p *provider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	ctx, c := p.t.begin(ctx, "prepare", "", "")
	err := atoll.Prepare(ctx, p.Provider, spec, progress)
	c.end(ctx, err, slog.String("image", spec.Image))
	return err
}

func (p *provider) RemoveProject(ctx context.Context, project string) error {
	ctx, c := p.t.event(ctx, "remove_project", "")
	err := atoll.RemoveProject(ctx, p.Provider, project)
	c.end(ctx, err, slog.String("project", project))
	return err
}

func (p *provider) Projects(ctx context.Context) ([]atoll.Project, error) {
	ctx, c := p.t.begin(ctx, "projects", "", "")
	all, err := atoll.Projects(ctx, p.Provider)
	c.end(ctx, err, slog.Int("n", len(all)))
	return all, err
}

func (p *provider) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	ctx, c := p.t.begin(ctx, "volumes", "", "")
	all, err := atoll.Volumes(ctx, p.Provider, project)
	c.end(ctx, err, slog.Int("n", len(all)))
	return all, err
}

func (p *provider) RemoveVolume(ctx context.Context, project, name string) error {
	ctx, c := p.t.event(ctx, "remove_volume", "")
	err := atoll.RemoveVolume(ctx, p.Provider, project, name)
	c.end(ctx, err, slog.String("project", project), slog.String("name", name))
	return err
}

func (p *provider) Workspaces(ctx context.Context, project string) ([]workspace.Workspace, error) {
	ctx, c := p.t.begin(ctx, "workspaces", "", "")
	all, err := workspace.List(ctx, p.Provider, project)
	c.end(ctx, err, slog.Int("n", len(all)))
	return all, err
}

func (p *provider) AddWorkspace(ctx context.Context, spec *workspace.Spec, progress func(atoll.Progress)) (workspace.Workspace, error) {
	ctx, c := p.t.event(ctx, "add_workspace", "")
	w, err := workspace.Add(ctx, p.Provider, spec, progress)
	c.end(ctx, err, slog.String("project", spec.Project), slog.String("name", spec.Name), slog.String("commit", w.Commit))
	return w, err
}

func (p *provider) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (workspace.Workspace, error) {
	ctx, c := p.t.event(ctx, "update_workspace", "")
	w, err := workspace.Update(ctx, p.Provider, project, name, progress)
	c.end(ctx, err, slog.String("project", project), slog.String("name", name), slog.String("commit", w.Commit))
	return w, err
}

func (p *provider) RemoveWorkspace(ctx context.Context, project, name string) error {
	ctx, c := p.t.event(ctx, "remove_workspace", "")
	err := workspace.Remove(ctx, p.Provider, project, name)
	c.end(ctx, err, slog.String("project", project), slog.String("name", name))
	return err
}

func (p *provider) OpenSession(ctx context.Context, spec *session.Spec) (session.Opened, error) {
	ctx, c := p.t.event(ctx, "open_session", "")
	o, err := session.Open(ctx, p.Provider, spec)
	c.end(ctx, err, slog.String("session", spec.Scope.Key()), slog.String("sandbox", o.Sandbox), slog.String("opening", string(o.Opening)))
	return o, err
}

func (p *provider) Sessions(ctx context.Context, project string) ([]session.Session, error) {
	ctx, c := p.t.begin(ctx, "sessions", "", "")
	all, err := session.List(ctx, p.Provider, project)
	c.end(ctx, err, slog.Int("n", len(all)))
	return all, err
}

func (p *provider) CloseSession(ctx context.Context, project, key string) error {
	ctx, c := p.t.event(ctx, "close_session", "")
	err := session.Close(ctx, p.Provider, project, key)
	c.end(ctx, err, slog.String("project", project), slog.String("session", key))
	return err
}

func (p *provider) Images(ctx context.Context) ([]atoll.Image, error) {
	ctx, c := p.t.begin(ctx, "images", "", "")
	all, err := atoll.Images(ctx, p.Provider)
	c.end(ctx, err, slog.Int("n", len(all)))
	return all, err
}

func (p *provider) RemoveImage(ctx context.Context, ref string, force bool) error {
	ctx, c := p.t.event(ctx, "remove_image", "")
	err := atoll.RemoveImage(ctx, p.Provider, ref, force)
	c.end(ctx, err, slog.String("image", ref), slog.Bool("force", force))
	return err
}

func (p *provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	ctx, c := p.t.event(ctx, "prune_images", "")
	pruned, err := atoll.PruneImages(ctx, p.Provider, opts)
	c.end(ctx, err, slog.Int("n", len(pruned.Images)), slog.Int64("bytes", int64(pruned.Size)))
	return pruned, err
}

func (p *provider) ResolveImage(ctx context.Context, ref string) (string, error) {
	ctx, c := p.t.begin(ctx, "resolve_image", "", "")
	digest, err := atoll.ResolveImage(ctx, p.Provider, ref)
	c.end(ctx, err, slog.String("image", ref), slog.String("digest", digest))
	return digest, err
}

// Secret tells that it was read, and not what it is.
func (p *provider) Secret(ctx context.Context, id string) (string, error) {
	ctx, c := p.t.event(ctx, "secret", id)
	raw, err := atoll.Secret(ctx, p.Provider, id)
	c.end(ctx, err)
	return raw, err
}

func (p *provider) Reconcile(ctx context.Context, opts registry.ReconcileOptions) (registry.Reconciliation, error) {
	ctx, c := p.t.event(ctx, "reconcile", "")
	found, err := registry.Reconcile(ctx, p.Provider, opts)
	c.end(ctx, err, slog.Int("healthy", found.Healthy), slog.Int("findings", len(found.Findings)), slog.Bool("dry_run", opts.DryRun))
	return found, err
}

func (p *provider) Pools(ctx context.Context) (pool.Report, error) {
	ctx, c := p.t.begin(ctx, "pools", "", "")
	report, err := pool.ReportOf(ctx, p.Provider)
	c.end(ctx, err, slog.Int("n", len(report.Pools)))
	return report, err
}

func (p *provider) Reserve(ctx context.Context, spec *atoll.Spec) (string, error) {
	ctx, c := p.t.begin(ctx, "reserve", "", "")
	id, err := atoll.Reserve(ctx, p.Provider, spec)
	c.end(ctx, err, slog.String("id", id))
	return id, err
}

func (p *provider) Snapshots(ctx context.Context) ([]atoll.Snapshot, error) {
	ctx, c := p.t.begin(ctx, "snapshots", "", "")
	all, err := atoll.Snapshots(ctx, p.Provider)
	c.end(ctx, err, slog.Int("n", len(all)))
	return all, err
}

func (p *provider) RemoveSnapshot(ctx context.Context, id string) error {
	ctx, c := p.t.event(ctx, "remove_snapshot", "")
	err := atoll.RemoveSnapshot(ctx, p.Provider, id)
	c.end(ctx, err, slog.String("snapshot", id))
	return err
}

var (
	_ atoll.Resolver       = (*provider)(nil)
	_ atoll.Combiner       = (*provider)(nil)
	_ atoll.Prober         = (*provider)(nil)
	_ atoll.Preparer       = (*provider)(nil)
	_ atoll.ProjectRemover = (*provider)(nil)
	_ atoll.ProjectLister  = (*provider)(nil)
	_ atoll.VolumeStore    = (*provider)(nil)
	_ workspace.Manager    = (*provider)(nil)
	_ session.Manager      = (*provider)(nil)
	_ session.Manager      = (*sessions)(nil)
	_ atoll.ImageStore     = (*provider)(nil)
	_ atoll.SnapshotStore  = (*provider)(nil)
	_ atoll.ImageResolver  = (*provider)(nil)
	_ atoll.SecretKeeper   = (*provider)(nil)
	_ registry.Reconciler  = (*provider)(nil)
	_ pool.Reporter        = (*provider)(nil)
	_ atoll.Reserver       = (*provider)(nil)
)

// workspaces is the layer that tells of nothing else.
type workspaces struct {
	atoll.ProviderLayer
	told *provider
}

func (w *workspaces) Workspaces(ctx context.Context, project string) ([]workspace.Workspace, error) {
	return w.told.Workspaces(ctx, project)
}

func (w *workspaces) AddWorkspace(ctx context.Context, spec *workspace.Spec, progress func(atoll.Progress)) (workspace.Workspace, error) {
	return w.told.AddWorkspace(ctx, spec, progress)
}

func (w *workspaces) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (workspace.Workspace, error) {
	return w.told.UpdateWorkspace(ctx, project, name, progress)
}

func (w *workspaces) RemoveWorkspace(ctx context.Context, project, name string) error {
	return w.told.RemoveWorkspace(ctx, project, name)
}

type sessions struct {
	atoll.ProviderLayer
	told *provider
}

func (s *sessions) OpenSession(ctx context.Context, spec *session.Spec) (session.Opened, error) {
	return s.told.OpenSession(ctx, spec)
}

func (s *sessions) Sessions(ctx context.Context, project string) ([]session.Session, error) {
	return s.told.Sessions(ctx, project)
}

func (s *sessions) CloseSession(ctx context.Context, project, key string) error {
	return s.told.CloseSession(ctx, project, key)
}
