package trace

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

// Metrics collects metrics and serves them in the format of Prometheus. Use it as the
// MeterProvider of Options and as the http.Handler of /metrics.
type Metrics struct {
	metric.MeterProvider
	handler http.Handler
	close   func() error
}

// NewMetrics returns a collection with the metrics of the Go runtime and of this process. The
// caller must close it.
func NewMetrics() (*Metrics, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	exporter, err := otelprometheus.New(
		otelprometheus.WithRegisterer(registry),
		otelprometheus.WithoutScopeInfo(),
		otelprometheus.WithoutTargetInfo(),
	)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	return &Metrics{
		MeterProvider: meters,
		handler:       promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
		close:         sync.OnceValue(func() error { return meters.Shutdown(context.Background()) }),
	}, nil
}

// Counter returns a function that adds n to the counter with this name.
func (m *Metrics) Counter(name, doc string) func(n int) {
	counter, err := m.Meter(scope).Int64Counter(name, metric.WithDescription(doc))
	if err != nil { // from the meter provider; its instruments work nevertheless
		otel.Handle(err)
	}
	return func(n int) { counter.Add(context.Background(), int64(n)) }
}

// ServeHTTP writes the current metrics.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.handler.ServeHTTP(w, r) }

// Close stops collecting. A second Close does nothing.
func (m *Metrics) Close() error { return m.close() }
