package api

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
)

// dialer connects to the host of an http or https URL.
func dialer(u *url.URL) func(ctx context.Context) (net.Conn, error) {
	d := &net.Dialer{Timeout: connectionLimit}
	if u.Scheme == "https" {
		addr := hostPort(u, "443")
		t := &tls.Dialer{NetDialer: d, Config: &tls.Config{NextProtos: []string{"http/1.1"}}}
		return func(ctx context.Context) (net.Conn, error) { return t.DialContext(ctx, "tcp", addr) }
	}
	addr := hostPort(u, "80")
	return func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
}

func hostPort(u *url.URL, port string) string {
	if p := u.Port(); p != "" {
		port = p
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// A wire is a connection of the client's that carries one request. It is a
// connection of its own, without the goroutines and the pool of
// http.Transport: what it is used for needs one anyhow.
type wire struct {
	net.Conn
	br   *bufio.Reader
	head io.LimitedReader // of Conn, for br: what it may still read
}

func newWire(conn net.Conn) *wire {
	w := &wire{Conn: conn, head: io.LimitedReader{R: conn, N: maxHead}}
	w.br = bufio.NewReaderSize(&w.head, headBuffer)
	return w
}

// Read reads what was received behind the answer first.
func (w *wire) Read(p []byte) (int, error) {
	if w.br.Buffered() > 0 {
		return w.br.Read(p)
	}
	return w.Conn.Read(p)
}

// CloseWrite tells the other side that nothing more will come.
func (w *wire) CloseWrite() error {
	if cw, ok := w.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return fmt.Errorf("the connection cannot be closed one way: %w", http.ErrNotSupported)
}

// headBuffer is for the head of a request and its answer; what follows is read
// and written directly.
const headBuffer = 1 << 10

// roundTrip sends req over a new connection and returns its answer, whose body
// is read from there. Until then ctx bounds it.
func (c *Client) roundTrip(req *http.Request) (*wire, *http.Response, error) {
	ctx := req.Context()
	conn, err := c.connect(ctx, c.atURL(req.URL))
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	w := newWire(conn)
	var resp *http.Response
	if err = w.write(req); err == nil {
		resp, err = w.answer(req)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return w, resp, nil
}

// write sends req.
func (w *wire) write(req *http.Request) error {
	bw := bufio.NewWriterSize(w.Conn, headBuffer)
	if err := req.Write(bw); err != nil {
		return err
	}
	return bw.Flush()
}

// answer reads the head of the answer to req, whose body is read from br.
func (w *wire) answer(req *http.Request) (*http.Response, error) {
	resp, err := http.ReadResponse(w.br, req)
	if err != nil && w.head.N <= 0 {
		err = fmt.Errorf("the headers of the answer are larger than %s", atoll.Bytes(maxHead))
	}
	w.head.N = math.MaxInt64
	return resp, err
}

// upgrade asks for another protocol on a new connection, which is returned
// once the server has agreed. ctx bounds the asking only.
func (c *Client) upgrade(ctx context.Context, q call, protocol string) (*wire, error) {
	req, err := c.request(ctx, q, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol)
	w, resp, err := c.roundTrip(req)
	if err != nil {
		return nil, c.fault(ctx, q.op, q.id, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer w.Close()
		return nil, c.answered(resp, refused(resp, q))
	}
	return w, nil
}

// refused is why the server does not upgrade.
func refused(resp *http.Response, q call) error {
	if resp.StatusCode < 400 {
		return atoll.Errorf(q.op, q.id, atoll.ErrInternal, "the server answered %s and does not speak the protocol", resp.Status)
	}
	return readError(resp, q.op, q.id)
}

// webSocket opens a WebSocket. ctx bounds the opening only.
func (c *Client) webSocket(ctx context.Context, q call) (*websocket.Conn, error) {
	req, err := c.request(ctx, q, nil)
	if err != nil {
		return nil, err
	}
	var answer error // of the server, instead of an upgrade
	transport := func(req *http.Request) (*http.Response, error) {
		w, resp, err := c.roundTrip(req)
		if err != nil {
			return nil, c.fault(ctx, q.op, q.id, err)
		}
		if resp.StatusCode != http.StatusSwitchingProtocols {
			defer w.Close()
			answer = c.answered(resp, refused(resp, q))
			return nil, answer
		}
		resp.Body = w
		return resp, nil
	}
	ws, _, err := websocket.Dial(ctx, req.URL.String(), &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transportFunc(transport)},
		HTTPHeader: req.Header,
	})
	if answer != nil {
		return nil, answer
	}
	return ws, c.fault(ctx, q.op, q.id, err)
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// uploadGrace is how long a call waits for the server to undo an upload that
// was broken off.
const uploadGrace = 5 * time.Second

// exchange is call for a request whose fate must be known. When ctx ends, or
// body fails, it closes only its own half of the connection, which the server
// takes as the end, and waits up to q.undo for what comes of it: when exchange
// returns, the server is done, or the error says that it may not be. It returns
// nil when the request succeeded all the same, and body's error when that
// failed.
func (c *Client) exchange(ctx context.Context, q call, body io.Reader, media string) error {
	src := &source{r: body}
	req, err := c.request(ctx, q, src)
	if err != nil {
		return err
	}
	req.ContentLength = sizeOf(body)
	if req.ContentLength == 0 {
		req.Body = http.NoBody
	}
	req.Header.Set("Content-Type", media)
	req.Close = true
	conn, err := c.connect(ctx, c.atURL(req.URL))
	if err != nil {
		return c.fault(ctx, q.op, q.id, err)
	}
	defer conn.Close()
	w := newWire(conn)
	defer context.AfterFunc(ctx, func() { w.breakOff(q.undo) })()
	defer context.AfterFunc(c.ctx, func() { conn.Close() })()
	go func() { // not waited for: it may be in a caller's Reader when the server refuses
		if w.write(req.WithContext(context.WithoutCancel(ctx))) != nil {
			w.breakOff(q.undo)
		}
	}()
	resp, err := w.answer(req)
	if failed := src.failure(); failed != nil {
		return ctxErr(ctx, failed)
	}
	if slow, ok := errors.AsType[net.Error](err); ok && slow.Timeout() && ctx.Err() != nil {
		return atoll.Errorf(q.op, q.id, atoll.KindOf(ctx.Err()), "%w, and the server, which had to undo it, did not say within %s that it has", ctx.Err(), q.undo)
	}
	if err != nil {
		return c.fault(ctx, q.op, q.id, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return ctxErr(ctx, c.answered(resp, readError(resp, q.op, q.id)))
	}
	return c.readReply(ctx, resp, q)
}

// breakOff tells the server that the rest of the request will not come.
func (w *wire) breakOff(undo time.Duration) {
	_ = w.SetReadDeadline(time.Now().Add(undo))
	if w.CloseWrite() != nil {
		w.Close()
	}
}

// readReply decodes the answer of a call that succeeded.
func (c *Client) readReply(ctx context.Context, resp *http.Response, q call) error {
	if q.reply == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBody)) // so that the connection can be used again
		return nil
	}
	most := cmp.Or(q.most, maxReply)
	reply, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if int64(len(reply)) > most {
		return atoll.Errorf(q.op, q.id, atoll.ErrExhausted, "the server's answer is larger than %s", atoll.Bytes(most))
	}
	if err == nil {
		err = json.Unmarshal(reply, q.reply)
	}
	return c.fault(ctx, q.op, q.id, err)
}

// A source is a body that remembers why it failed.
type source struct {
	r io.Reader

	mu  sync.Mutex
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
	}
	return n, err
}

// WriteTo lets net/http use a large buffer.
func (s *source) WriteTo(w io.Writer) (int64, error) { return copyBuffer(w, struct{ io.Reader }{s}) }

func (s *source) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// sizeOf is how much r will give, -1 when that cannot be known.
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
