// Package trace is a layer that reports the calls on a provider as structured logs, OpenTelemetry
// spans and metrics. It is the only package that uses OpenTelemetry.
//
//	metrics, err := trace.NewMetrics()
//	...
//	traces := trace.NewTraces(ctx, trace.TracesOptions{Log: log})
//	p = trace.New(p, trace.Options{Log: log, TracerProvider: traces, MeterProvider: metrics})
//	mux.Handle("GET /metrics", metrics)
//
// Each call is one log record with the verb as its message, one span ("atoll.create"), and one
// count in
//
//	atoll_calls_total{provider,op,kind}   kind is "ok" for a call without an error
//	atoll_call_seconds{provider,op}
//	atoll_sandboxes{provider,state}       counted at each scrape
//	atoll_pool_sandboxes{provider,pool}   warm sandboxes, counted at each scrape
//	atoll_pool_total{provider,pool,event} hit, miss, created, destroyed
//
// A trace continues from program to program if the hooks of package api are Extract and Inject:
// the spans of a server are children of its client's.
//
// Logs and spans have ids; labels of metrics do not. None of them has input, output or content of
// files in a sandbox, or values of environment variables. Only logs of level Debug and texts of
// errors have arguments of commands and names of files.
package trace

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	oteltrace "go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/intercept"
	"github.com/seed46cd37a8/atoll/layer/pool"
)

// Options are the destinations of reports. A nil destination gets none.
type Options struct {
	// Log receives a record for each call. The level is Info for changes in the life of a
	// sandbox, Debug for other calls, Warn for failures that may be temporary, and Error for
	// faults of Atoll or its backend.
	Log *slog.Logger
	// Attrs returns additional attributes for the record of a call, from its ctx.
	Attrs func(ctx context.Context) []slog.Attr
	// Quiet reports, from its ctx, whether to record a call at level Debug whatever its result.
	Quiet          func(ctx context.Context) bool
	TracerProvider oteltrace.TracerProvider
	MeterProvider  metric.MeterProvider
}

// scope is the name of this package in OpenTelemetry.
const scope = "github.com/seed46cd37a8/atoll/layer/trace"

// New returns a layer around p that traces every call. Its Close closes p.
func New(p atoll.Provider, opts Options) atoll.Provider {
	t, meter := newTracer(p.Info().Name, opts)
	t.registerGauges(meter, p)
	return &provider{atoll.ProviderLayer{Provider: intercept.New(p, intercept.All, t.traceCall)}, t}
}

// Workspaces returns a layer around p that traces the calls of workspace.Manager, with
// "workspace" as the name of the provider. Use it around layers whose providers are already
// traced. Its Close closes p.
func Workspaces(p atoll.Provider, opts Options) atoll.Provider {
	return traceOnly(p, "workspace", opts)
}

// Sessions is like Workspaces for the calls of session.Manager, with the name "session".
func Sessions(p atoll.Provider, opts Options) atoll.Provider {
	return traceOnly(p, "session", opts)
}

// traceOnly traces the provider's methods whose names contain object.
func traceOnly(p atoll.Provider, object string, opts Options) atoll.Provider {
	t, _ := newTracer(object, opts)
	return intercept.New(p, intercept.Providers, func(ctx context.Context, c *intercept.Call, next intercept.Next) error {
		if !strings.Contains(strings.ToLower(c.Op), object) {
			return next(ctx)
		}
		return t.traceCall(ctx, c, next)
	})
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
	t.createMeters(meter)
	return t, meter
}

// A tracer reports calls.
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

// createMeters creates the instruments. Their names are valid, so that an error can only come
// from the meter provider, whose instruments work nevertheless.
func (t *tracer) createMeters(m metric.Meter) {
	var err, errs error
	t.calls, err = m.Int64Counter("atoll_calls", metric.WithDescription("Calls of the provider, by verb and kind of error."))
	errs = errors.Join(errs, err)
	t.seconds, err = m.Float64Histogram("atoll_call_seconds", metric.WithDescription("Duration of calls in seconds."),
		metric.WithExplicitBucketBoundaries(buckets...))
	t.logError(errors.Join(errs, err))
}

// registerGauges registers the gauges and counters of the sandboxes and pools of p.
func (t *tracer) registerGauges(m metric.Meter, p atoll.Provider) {
	sandboxes, errs := m.Int64ObservableGauge("atoll_sandboxes", metric.WithDescription("Sandboxes that exist, by state."))
	reg, err := m.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		return countSandboxes(ctx, p, func(n int64, attrs ...attribute.KeyValue) {
			o.ObserveInt64(sandboxes, n, metric.WithAttributes(attrs...))
		})
	}, sandboxes)
	errs = errors.Join(errs, err)
	pools, err := m.Int64ObservableGauge("atoll_pool_sandboxes", metric.WithDescription("Warm sandboxes in pools."))
	errs = errors.Join(errs, err)
	events, err := m.Int64ObservableCounter("atoll_pool", metric.WithDescription("Events of pools: hits, misses, created and destroyed sandboxes."))
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
	t.logError(errors.Join(errs, err))
	t.unregister = func() error { return nil }
	if reg != nil && poolReg != nil {
		t.unregister = func() error { return errors.Join(reg.Unregister(), poolReg.Unregister()) }
	}
}

func (t *tracer) logError(err error) {
	if err != nil {
		t.log.Warn("metrics", "err", err)
	}
}

// countSandboxes reports the number of sandboxes in each state, by provider.
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

// kindLabel returns the kind of err as the value of a label.
func kindLabel(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return string(atoll.KindOf(err))
}

// logLevel returns the level for a failed call whose usual level is level. Errors of the caller,
// such as a missing object or a canceled context, do not raise it.
func logLevel(err error, level slog.Level) slog.Level {
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

// A provider unregisters its gauges when it closes.
type provider struct {
	atoll.ProviderLayer
	t *tracer
}

// Close implements atoll.Provider.
func (p *provider) Close() error {
	return errors.Join(p.t.unregister(), p.Provider.Close())
}
