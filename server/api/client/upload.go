package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// undoGrace is the time for the server to undo an upload or a snapshot, or for a response that it had sent
// when it learned that the caller stopped waiting.
const undoGrace = 5 * time.Second

// callUndoable makes a request that the server must either complete or undo. If ctx ends or body
// fails, callUndoable closes its half of the connection, which makes the server undo the request,
// and waits up to q.undoTimeout for the response. When it returns, the server has finished, or the
// error says that it may not have. callUndoable returns nil if the request succeeded in spite of
// ctx, and the error of body if that failed.
func (c *Client) callUndoable(ctx context.Context, q call, body io.Reader, media string) error {
	src := &bodySource{r: body}
	req, err := c.newRequest(ctx, q, src)
	if err != nil {
		return err
	}
	req.ContentLength = sizeOf(body)
	if req.ContentLength == 0 {
		req.Body = http.NoBody
	}
	if media != "" {
		req.Header.Set("Content-Type", media)
	}
	req.Close = true
	conn, err := c.dialEndpoint(ctx, c.endpointByURL(req.URL))
	if err != nil {
		return c.wrapConnError(ctx, q.op, q.id, err)
	}
	defer conn.Close()
	w := newRequestConn(conn)
	defer context.AfterFunc(ctx, func() { w.breakOff(q.undoTimeout) })()
	defer context.AfterFunc(c.ctx, func() { conn.Close() })()
	go func() { // nothing waits for it: it may block in the caller's Reader after the server refused
		if w.writeRequest(req.WithContext(context.WithoutCancel(ctx))) != nil {
			w.breakOff(q.undoTimeout)
		}
	}()
	resp, err := w.readResponse(req)
	if failed := src.readFailure(); failed != nil {
		return ctxErr(ctx, failed)
	}
	if slow, ok := errors.AsType[net.Error](err); ok && slow.Timeout() && ctx.Err() != nil {
		return atoll.Errorf(q.op, q.id, atoll.KindOf(ctx.Err()), "%w, and the server did not confirm within %s that the request was undone", ctx.Err(), q.undoTimeout)
	}
	if err != nil {
		return c.wrapConnError(ctx, q.op, q.id, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return ctxErr(ctx, c.backOffIfClosing(resp, readError(resp, q.op, q.id)))
	}
	return c.readReply(ctx, resp, q)
}

// breakOff closes the write half, so that the server undoes the request, and bounds the wait for
// the response.
func (w *requestConn) breakOff(undo time.Duration) {
	_ = w.SetReadDeadline(time.Now().Add(undo))
	if w.CloseWrite() != nil {
		w.Close()
	}
}

// A bodySource records the error of a request body.
type bodySource struct {
	r io.Reader

	mu  sync.Mutex
	err error
}

func (s *bodySource) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
	}
	return n, err
}

// WriteTo implements io.WriterTo, so that net/http uses a large buffer.
func (s *bodySource) WriteTo(w io.Writer) (int64, error) {
	return wire.CopyBuffer(w, struct{ io.Reader }{s})
}

func (s *bodySource) readFailure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// sizeOf returns the number of bytes that r will return, or -1 if unknown.
func sizeOf(r io.Reader) int64 {
	switch r := r.(type) {
	case *bytes.Buffer:
		return int64(r.Len())
	case *bytes.Reader:
		return int64(r.Len())
	case *strings.Reader:
		return int64(r.Len())
	case *os.File:
		fi, err := r.Stat()
		if err != nil || !fi.Mode().IsRegular() || fi.Size() == 0 {
			return -1
		}
		at, err := r.Seek(0, io.SeekCurrent)
		if err != nil || at > fi.Size() {
			return -1
		}
		return fi.Size() - at
	}
	return -1
}
