// Package duplex lets proxies respond to requests that they have not read to the end.
package duplex

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
)

// Begin returns the request that a handler should serve instead of r. The handler can then respond before it has read the body: otherwise
// net/http reads and closes the body when a response of HTTP/1 begins, and a proxy that still sends it breaks off the response.
func Begin(w http.ResponseWriter, r *http.Request) *http.Request {
	if r.ProtoMajor != 1 || http.NewResponseController(w).EnableFullDuplex() != nil || r.ContentLength == 0 {
		return r
	}
	b := &body{ReadCloser: r.Body}
	b.left.Store(r.ContentLength)
	r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, b))
	r.Body = b
	return r
}

type bodyKey struct{}

// A body is the body of a request.
type body struct {
	io.ReadCloser
	left  atomic.Int64 // bytes that have not been read; negative if the length is not known
	ended atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left.Add(int64(-n)) == 0 || err != nil {
		b.ended.Store(true)
	}
	return n, err
}

// SetHeader completes the header of a response to a request from Begin, of which ctx is the context. If the body has not been read to the
// end, the connection cannot serve another request: net/http would panic (https://go.dev/issue/68560).
func SetHeader(ctx context.Context, header http.Header) {
	if b, ok := ctx.Value(bodyKey{}).(*body); ok && !b.ended.Load() {
		header.Set("Connection", "close")
	}
}
