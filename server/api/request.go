package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
)

// The headers that this API adds to HTTP's own.
const (
	RequestIDHeader = "X-Request-Id"    // both ways: names one request in logs and errors
	OffsetHeader    = "Atoll-Offset"    // of process output: the offset of the first byte in the body
	FileInfoHeader  = "Atoll-File-Info" // of a file: its FileInfo, as JSON in ASCII
	ErrorTrailer    = "Atoll-Error"     // behind a body that broke off: the error, as JSON in ASCII
)

// traceHeaders carry a trace from hop to hop; the Handler hands them to the
// Client that is called with the same context as they are.
var traceHeaders = []string{"Traceparent", "Tracestate", "Baggage"}

type requestIDKey struct{}

// RequestID returns the id of the request that ctx belongs to, "" if none.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// WithRequestID returns a ctx whose calls through a Client carry id.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// requestIDOf takes the caller's id when it is fit to be logged.
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

// keepTrace is the default of Options.Extract: the trace headers go on to the
// next hop untouched.
func keepTrace(ctx context.Context, h http.Header) context.Context {
	if h.Get("Traceparent") == "" {
		return ctx
	}
	kept := http.Header{}
	for _, name := range traceHeaders {
		if v := h[name]; len(v) > 0 {
			kept[name] = v
		}
	}
	return context.WithValue(ctx, traceKey{}, kept)
}

// sendTrace is the default of ClientOptions.Inject.
func sendTrace(ctx context.Context, h http.Header) {
	kept, _ := ctx.Value(traceKey{}).(http.Header)
	for name, v := range kept {
		h[name] = v
	}
}
