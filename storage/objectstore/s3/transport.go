package s3

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// answerTimeout bounds the wait of a writeTransport for an answer after the context has ended.
const answerTimeout = 5 * time.Second

// A writeTransport waits for the answer to a write although its context has ended, for a limited
// time: the service may have read the whole request and be carrying it out, and it would store a
// part after putParts has removed the upload. The reader of the body fails when the context ends,
// which breaks off a request that the service has not read yet.
type writeTransport struct {
	http.RoundTripper
	timeout time.Duration
}

func (t *writeTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return t.RoundTripper.RoundTrip(r)
	}
	var connected atomic.Bool
	ctx, cancel := context.WithCancel(httptrace.WithClientTrace(context.WithoutCancel(r.Context()), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	}))
	stop := context.AfterFunc(r.Context(), func() {
		if !connected.Load() {
			cancel()
			return
		}
		time.AfterFunc(t.timeout, cancel)
	})
	resp, err := t.RoundTripper.RoundTrip(r.WithContext(ctx))
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	resp.Body = &answerBody{resp.Body, func() { stop(); cancel() }}
	return resp, nil
}

// CloseIdleConnections is for http.Client.CloseIdleConnections.
func (t *writeTransport) CloseIdleConnections() {
	if c, ok := t.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// An answerBody calls release when it is closed.
type answerBody struct {
	io.ReadCloser
	release func()
}

func (b *answerBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}
