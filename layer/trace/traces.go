package trace

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
)

// propagator transmits traces between processes in the headers of W3C.
var propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

// Extract returns a context with the trace in the headers of a request, if they contain one. Use
// it as Extract of api.Options.
func Extract(ctx context.Context, h http.Header) context.Context {
	return propagator.Extract(ctx, propagation.HeaderCarrier(h))
}

// Inject adds the trace of ctx to the headers of a request, if ctx has one. Use it as Inject of
// client.Options.
func Inject(ctx context.Context, h http.Header) {
	propagator.Inject(ctx, propagation.HeaderCarrier(h))
}

// Traces sends the spans of this program. Use it as the TracerProvider of Options.
type Traces struct {
	oteltrace.TracerProvider
	close func() error // nil if there is nothing to close
}

// TracesOptions describe this program in its spans.
type TracesOptions struct {
	Version string
	Log     *slog.Logger // receives spans that cannot be sent; nil discards them
}

// NewTraces returns Traces that send spans by OTLP over HTTP to the collector in the environment
// variables of OpenTelemetry, such as OTEL_EXPORTER_OTLP_ENDPOINT. Without a usable collector it
// creates no spans, but still passes on the traces of other programs; it logs an unusable one.
// NewTraces does not connect. The caller must close the result.
func NewTraces(ctx context.Context, opts TracesOptions) *Traces {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	traces, err := newExporter(ctx, opts)
	if err != nil {
		opts.Log.Warn("traces", "err", err)
	}
	if traces == nil {
		return &Traces{TracerProvider: nooptrace.NewTracerProvider()}
	}
	return traces
}

// newExporter returns Traces that send spans, or nil if the environment names no collector.
func newExporter(ctx context.Context, opts TracesOptions) (*Traces, error) {
	endpoint := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	kind := cmp.Or(os.Getenv("OTEL_TRACES_EXPORTER"), "otlp")
	if endpoint == "" || kind != "otlp" || strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf")
	if !strings.HasPrefix(protocol, "http/") {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL %s: use http/protobuf", protocol)
	}
	about, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "atoll"), attribute.String("service.version", opts.Version)),
		resource.WithFromEnv(), // the last one wins
	)
	if err != nil {
		return nil, err
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, err
	}
	s := sender{SpanExporter: exporter, log: opts.Log}
	s.ctx, s.giveUp = context.WithCancel(context.Background())
	spans := sdktrace.NewTracerProvider(sdktrace.WithBatcher(s), sdktrace.WithResource(about))
	return &Traces{spans, func() error { return s.shutDown(spans.Shutdown) }}, nil
}

// Command starts the span of a command of the program. If env has a trace (TRACEPARENT,
// TRACESTATE, BAGGAGE), the span continues it, or else starts a new one. The caller must call
// end.
func (t *Traces) Command(ctx context.Context, name string, env []string) (_ context.Context, end func(error)) {
	from := propagation.MapCarrier{}
	for _, kv := range env {
		key, value, _ := strings.Cut(kv, "=")
		from[strings.ToLower(key)] = value
	}
	ctx, span := t.Tracer(scope).Start(propagator.Extract(ctx, from), name)
	return ctx, func(err error) {
		if err != nil {
			span.SetAttributes(attribute.String("atoll.kind", kindLabel(err)))
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// flushTimeout limits how long Close tries to send the last spans.
var flushTimeout = 2 * time.Second

// Close sends the remaining spans, within a few seconds. A second Close does nothing.
func (t *Traces) Close() error {
	if t.close == nil {
		return nil
	}
	return t.close()
}

// A sender sends spans, and reports failures to log instead of the global log of OpenTelemetry.
type sender struct {
	sdktrace.SpanExporter
	log    *slog.Logger
	ctx    context.Context // bounds all requests
	giveUp context.CancelFunc
}

// shutDown calls shutdown, which sends the remaining spans, and cancels it after flushTimeout.
func (s sender) shutDown(shutdown func(context.Context) error) error {
	defer s.giveUp()
	defer time.AfterFunc(flushTimeout, s.giveUp).Stop()
	return shutdown(context.Background())
}

// ExportSpans implements sdktrace.SpanExporter.
func (s sender) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	if err := s.SpanExporter.ExportSpans(ctx, spans); err != nil {
		s.log.Warn("traces", "lost", len(spans), "err", err)
	}
	return nil
}
