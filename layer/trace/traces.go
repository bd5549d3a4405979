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

// carrier is how a trace goes from process to process: W3C's headers.
var carrier = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

// Extract returns a ctx that goes on with the trace that the headers of a
// request name, if they do. It is the Extract of api.Options.
func Extract(ctx context.Context, h http.Header) context.Context {
	return carrier.Extract(ctx, propagation.HeaderCarrier(h))
}

// Inject names the trace that ctx belongs to, if it does, in the headers of a
// request. It is the Inject of api.ClientOptions.
func Inject(ctx context.Context, h http.Header) {
	carrier.Inject(ctx, propagation.HeaderCarrier(h))
}

// Traces are the spans of one program. It is the TracerProvider of Options.
type Traces struct {
	oteltrace.TracerProvider
	close func() error // nil when there is nothing to close
}

// TracesOptions describe a program to those who look at its spans.
type TracesOptions struct {
	Version string
	Log     *slog.Logger // told of spans that could not be sent; nil discards
}

// NewTraces sends spans to where OpenTelemetry's variables in the environment
// say, OTEL_EXPORTER_OTLP_ENDPOINT first of all, by OTLP over HTTP. Where they
// name no place, or one that cannot be used, which Log is told, no spans are
// made; traces that others have begun are carried on all the same. The caller
// closes it. It connects to nothing yet.
func NewTraces(ctx context.Context, opts TracesOptions) *Traces {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	traces, err := exported(ctx, opts)
	if err != nil {
		opts.Log.Warn("traces", "err", err)
	}
	if traces == nil {
		return &Traces{TracerProvider: nooptrace.NewTracerProvider()}
	}
	return traces
}

// exported makes spans that are sent; nil where nobody wants them.
func exported(ctx context.Context, opts TracesOptions) (*Traces, error) {
	endpoint := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	kind := cmp.Or(os.Getenv("OTEL_TRACES_EXPORTER"), "otlp")
	if endpoint == "" || kind != "otlp" || strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf")
	if !strings.HasPrefix(protocol, "http/") {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %s: use http/protobuf", protocol)
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
	return &Traces{spans, func() error { return s.flush(spans.Shutdown) }}, nil
}

// Command begins the span of a whole command. When the environment names a
// trace (TRACEPARENT, TRACESTATE, BAGGAGE) it is part of that, else the
// beginning of one. The caller calls end.
func (t *Traces) Command(ctx context.Context, name string, env []string) (_ context.Context, end func(error)) {
	from := propagation.MapCarrier{}
	for _, kv := range env {
		key, value, _ := strings.Cut(kv, "=")
		from[strings.ToLower(key)] = value
	}
	ctx, span := t.Tracer(scope).Start(carrier.Extract(ctx, from), name)
	return ctx, func(err error) {
		if err != nil {
			span.SetAttributes(attribute.String("atoll.kind", kindOf(err)))
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// flushTime is how long Close tries to send the last spans.
const flushTime = 2 * time.Second

// Close sends what has not been sent yet, within a few seconds. A second Close
// does nothing.
func (t *Traces) Close() error {
	if t.close == nil {
		return nil
	}
	return t.close()
}

// A sender tells our log, not OpenTelemetry's global one, what it cannot send.
type sender struct {
	sdktrace.SpanExporter
	log    *slog.Logger
	ctx    context.Context // of all that is sent
	giveUp context.CancelFunc
}

// flush shuts down, which sends what is left, and gives up when that takes too
// long.
func (s sender) flush(shutdown func(context.Context) error) error {
	defer s.giveUp()
	defer time.AfterFunc(flushTime, s.giveUp).Stop()
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
