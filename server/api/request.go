package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
)

// The headers that this API adds to HTTP's own.
const (
	RequestIDHeader = "X-Request-Id"    // of requests and responses: identifies a request in logs and errors
	OffsetHeader    = "Atoll-Offset"    // of process output: offset of the first byte in the body
	FileInfoHeader  = "Atoll-File-Info" // of a file: its FileInfo, as ASCII JSON
	ErrorTrailer    = "Atoll-Error"     // after an incomplete body: the error, as ASCII JSON
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

// requestIDOf returns the id in the header if it is fit for logs, else a new id.
func requestIDOf(h http.Header) string {
	id := h.Get(RequestIDHeader)
	if id == "" || len(id) > 128 {
		return newRequestID()
	}
	for _, c := range []byte(id) {
		if c <= ' ' || c > '~' {
			return newRequestID()
		}
	}
	return id
}

func newRequestID() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

type traceKey struct{}

// keepTrace is the default of Options.Extract. It stores the trace headers in ctx.
func keepTrace(ctx context.Context, h http.Header) context.Context {
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

// sendTrace is the default of ClientOptions.Inject. It copies the stored trace headers.
func sendTrace(ctx context.Context, h http.Header) {
	trace, _ := ctx.Value(traceKey{}).(http.Header)
	for name, v := range trace {
		h[name] = v
	}
}
