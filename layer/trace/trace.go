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

// New returns p with every call traced. Its Close closes p.
func New(p atoll.Provider, opts Options) atoll.Provider {
	t, meter := newTracer(p.Info().Name, opts)
	t.gauge(meter, p)
	return &provider{atoll.ProviderLayer{Provider: intercept.New(p, intercept.All, t.traceCall)}, t}
}

// Workspaces returns p with its calls about workspaces traced, under the name "workspace" in place
// of a provider's: for a layer around providers that are traced themselves. Its Close closes p.
func Workspaces(p atoll.Provider, opts Options) atoll.Provider {
	return traceOnly(p, "workspace", opts)
}

// Sessions does for sessions what Workspaces does for workspaces, under the name "session".
func Sessions(p atoll.Provider, opts Options) atoll.Provider {
	return traceOnly(p, "session", opts)
}

// traceOnly traces the provider's methods with object in their names.
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

// A provider ends the metrics with its provider.
type provider struct {
	atoll.ProviderLayer
	t *tracer
}

// Close implements atoll.Provider.
func (p *provider) Close() error {
	return errors.Join(p.t.unregister(), p.Provider.Close())
}
