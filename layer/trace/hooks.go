package trace

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
)

// Hooks returns a function that counts runs of hooks with the meters of opts, in
//
//	atoll_hooks_total{hook,kind}   kind is "ok" for a run without an error
//	atoll_hook_seconds{hook}
//
// Call the function after each run of a hook. It is safe for concurrent use.
func Hooks(opts Options) func(hook string, took time.Duration, err error) {
	if opts.MeterProvider == nil {
		opts.MeterProvider = noopmetric.NewMeterProvider()
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	m := opts.MeterProvider.Meter(scope)
	hooks, err := m.Int64Counter("atoll_hooks", metric.WithDescription("Runs of hooks, by name and kind of error."))
	seconds, err2 := m.Float64Histogram("atoll_hook_seconds", metric.WithDescription("Duration of hooks in seconds."),
		metric.WithExplicitBucketBoundaries(buckets...))
	if err := errors.Join(err, err2); err != nil { // from the meter provider; its instruments work nevertheless
		opts.Log.Warn("metrics", "err", err)
	}
	return func(hook string, took time.Duration, err error) {
		name := attribute.String("hook", hook)
		hooks.Add(context.Background(), 1, metric.WithAttributes(name, attribute.String("kind", kindLabel(err))))
		seconds.Record(context.Background(), took.Seconds(), metric.WithAttributes(name))
	}
}
