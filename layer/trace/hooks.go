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

// Hooks returns what counts the hooks of sandboxes' lives, with the meters of opts, in
//
//	atoll_hooks_total{hook,kind}   kind is "ok" when there was no error
//	atoll_hook_seconds{hook}
//
// It is told of each hook that was run, and may be called at once from many goroutines.
func Hooks(opts Options) func(hook string, took time.Duration, err error) {
	if opts.MeterProvider == nil {
		opts.MeterProvider = noopmetric.NewMeterProvider()
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	m := opts.MeterProvider.Meter(scope)
	hooks, err := m.Int64Counter("atoll_hooks", metric.WithDescription("Hooks that were run, by name and kind of error."))
	seconds, err2 := m.Float64Histogram("atoll_hook_seconds", metric.WithDescription("How long hooks took."),
		metric.WithExplicitBucketBoundaries(buckets...))
	if err := errors.Join(err, err2); err != nil { // the meter provider's own; its instruments work all the same
		opts.Log.Warn("metrics", "err", err)
	}
	return func(hook string, took time.Duration, err error) {
		name := attribute.String("hook", hook)
		hooks.Add(context.Background(), 1, metric.WithAttributes(name, attribute.String("kind", kindOf(err))))
		seconds.Record(context.Background(), took.Seconds(), metric.WithAttributes(name))
	}
}
