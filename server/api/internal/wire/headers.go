package wire

import (
	"context"
	"net/http"
	"time"
)

// The headers that the API adds to HTTP.
const (
	PreferHeader    = "Prefer"          // of requests (RFC 7240)
	PreferMinimal   = "return=minimal"  // its value in a request whose response needs only the id
	RequestIDHeader = "X-Request-Id"    // of requests and responses: identifies a request in logs and errors
	OffsetHeader    = "Atoll-Offset"    // of process output: offset of the first byte in the body
	FileInfoHeader  = "Atoll-File-Info" // of a file: its FileInfo, as ASCII JSON
	ErrorTrailer    = "Atoll-Error"     // after an incomplete body: the error, as ASCII JSON
	FirstHeader     = "Atoll-First"     // of a request for a stream: its first Message, as ASCII JSON; in the response, that the server has taken it
)

// traceHeaders carry the trace context. A Handler stores them in the context and a Client forwards
// them.
var traceHeaders = []string{"Traceparent", "Tracestate", "Baggage"}

type requestIDKey struct{}

// RequestID returns the id of the request that ctx belongs to, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// WithRequestID returns a ctx whose calls through a Client carry id.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

type traceKey struct{}

// StoreTrace is the default of api.Options.Extract. It stores the trace headers in ctx.
func StoreTrace(ctx context.Context, h http.Header) context.Context {
	if h.Get("Traceparent") == "" {
		return ctx
	}
	trace := http.Header{}
	for _, name := range traceHeaders {
		if v := h[name]; len(v) > 0 {
			trace[name] = v
		}
	}
	return context.WithValue(ctx, traceKey{}, trace)
}

// SendTrace is the default of client.Options.Inject. It copies the stored trace headers.
func SendTrace(ctx context.Context, h http.Header) {
	trace, _ := ctx.Value(traceKey{}).(http.Header)
	for name, v := range trace {
		h[name] = v
	}
}

// The media types of bodies.
const (
	MediaJSON  = "application/json"
	MediaBytes = "application/octet-stream"
	MediaTar   = "application/x-tar"
	MediaSSE   = "text/event-stream"
)

// ProtocolTCP is the protocol that an upgrade to a tunnel names.
const ProtocolTCP = "tcp"

const (
	// DiscardTimeout bounds the removal of a sandbox or a snapshot whose client stopped waiting for it.
	DiscardTimeout = 30 * time.Second
	// CreateGrace is the time that a client waits for the server to undo a Create.
	CreateGrace = DiscardTimeout + 5*time.Second
)
