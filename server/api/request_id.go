package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"

	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// The headers that this API adds to HTTP.
const (
	RequestIDHeader = wire.RequestIDHeader // of requests and responses: identifies a request in logs and errors
	OffsetHeader    = wire.OffsetHeader    // of process output: offset of the first byte in the body
	FileInfoHeader  = wire.FileInfoHeader  // of a file: its FileInfo, as ASCII JSON
	ErrorTrailer    = wire.ErrorTrailer    // after an incomplete body: the error, as ASCII JSON
)

// RequestID returns the id of the request that ctx belongs to, or "".
func RequestID(ctx context.Context) string { return wire.RequestID(ctx) }

// WithRequestID returns a ctx whose calls through a client carry id.
func WithRequestID(ctx context.Context, id string) context.Context {
	return wire.WithRequestID(ctx, id)
}

// MarshalError encodes err as in the body of a response.
func MarshalError(err error) []byte { return wire.MarshalError(err) }

// UnmarshalError decodes an error from the body of a response. op and id are the fallback for an
// error without an operation.
func UnmarshalError(data []byte, op, id string) error { return wire.UnmarshalError(data, op, id) }

// requestIDOf returns the id in the header if it is fit for logs, else a new id.
func requestIDOf(h http.Header) string {
	id := h.Get(wire.RequestIDHeader)
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
