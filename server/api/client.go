package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
)

// ClientOptions say which server a Client talks to.
type ClientOptions struct {
	// URL is http://host:port, https://host:port or unix:///path/of/the/socket, or several
	// of these with commas between them: servers that share a store, of which the first one
	// that answers is asked. Empty is fine when Dial is given.
	URL string
	// Patience is how long a call is tried again, from when it first failed, whose server
	// was not reached, has gone, or is closing. Whatever was not begun is; of the rest what
	// can be repeated, such as asking, starting, stopping, removing, opening a session, and
	// a Create with an ID of its own. A process's streams go on where they were, a Watch
	// tells what has changed, and a file that is being read goes on if it is still the same.
	// 0 tries other servers of URL with what was not begun, once each.
	Patience time.Duration
	// Token is sent as the bearer token. Empty sends none.
	Token string
	// Dial connects to the server, whatever URL says.
	Dial func(ctx context.Context) (net.Conn, error)
	// Info is what Client.Info returns. nil means that NewClient asks.
	Info *atoll.Info
	// Inject puts the trace context into a request's headers. nil sends on
	// those that a Handler has received.
	Inject func(ctx context.Context, h http.Header)
}

// A Client is the Provider that a Handler serves elsewhere.
type Client struct {
	opts  ClientOptions
	addrs []*address // one at least
	where string     // the addresses, for errors
	http  *http.Client
	info  atoll.Info

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // connections that are being read
}

const (
	copySize        = 256 << 10        // of the buffers that files are copied with
	bufferSize      = 64 << 10         // of a connection's buffers
	clientIdle      = 30 * time.Second // shorter than the server's, so that a request never meets a closing connection
	maxIdle         = 64
	connectionLimit = 10 * time.Second // to connect
)

// What is taken of an answer: the other end need not be a friend.
const (
	maxHead      int64 = 256 << 10 // the headers, of which one may describe a file
	maxReply     int64 = 1 << 20
	maxSpecReply int64 = 32 << 20 // one with a Spec or a command in it
	maxListReply int64 = 256 << 20
)

// NewClient returns a client of the server that opts name. Unless opts.Info is
// given it asks the server for its Info, within ctx. Kinds: ErrInvalid (the
// URL), ErrUnavailable (nobody answers there), ErrDenied (the token).
func NewClient(ctx context.Context, opts ClientOptions) (*Client, error) {
	c := &Client{opts: opts}
	if err := c.locate(); err != nil {
		return nil, err
	}
	if c.opts.Inject == nil {
		c.opts.Inject = sendTrace
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext:            func(ctx context.Context, _, host string) (net.Conn, error) { return c.connect(ctx, c.at(host)) },
			DialTLSContext:         func(ctx context.Context, _, host string) (net.Conn, error) { return c.connect(ctx, c.at(host)) },
			DisableCompression:     true,
			MaxIdleConns:           maxIdle,
			MaxIdleConnsPerHost:    maxIdle,
			IdleConnTimeout:        clientIdle,
			MaxResponseHeaderBytes: maxHead,
			ReadBufferSize:         bufferSize,
			WriteBufferSize:        bufferSize,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if opts.Info != nil {
		c.info = *opts.Info
		return c, nil
	}
	var info serverInfo
	if err := c.call(ctx, call{op: "info", path: "/v1/info", reply: &info, once: true}); err != nil {
		c.Close()
		return nil, err
	}
	c.info = info.Info
	return c, nil
}

// Info implements atoll.Provider.
func (c *Client) Info() atoll.Info { return c.info }

// Close ends the connections. What still waits or watches gets ErrUnavailable.
// The server, its sandboxes and their processes live on.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.http.CloseIdleConnections()
	c.work.Wait()
	return nil
}

// begin counts in work that Close waits for.
func (c *Client) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClientClosed
	}
	c.work.Add(1)
	return nil
}

var errClientClosed = fmt.Errorf("the client is closed")

// A call is one request with a JSON answer.
type call struct {
	op, id       string // for errors that the server did not make
	method, path string // method "" means GET
	query        url.Values
	body         any           // sent as JSON unless nil
	reply        any           // decoded from JSON unless nil
	most         int64         // of the reply, in bytes; 0 means maxReply
	safe         bool          // it may be done twice; a GET always may
	once         bool          // no server is waited for
	undo         time.Duration // how long exchange waits for the server to undo it
}

// call makes the request and waits for the answer, and does so again where
// ClientOptions.Patience says so. When ctx ends first it returns ctx's error.
func (c *Client) call(ctx context.Context, q call) error {
	t := trial{c: c}
	if q.once {
		t.until = time.Now()
	}
	for {
		err := c.callOnce(ctx, q)
		if err == nil || !t.again(ctx, err, q.repeatable()) {
			return ctxErr(ctx, err)
		}
	}
}

// repeatable reports whether it does no harm to make the request twice.
func (q call) repeatable() bool { return q.safe || q.method == "" || q.method == http.MethodGet }

func (c *Client) callOnce(ctx context.Context, q call) error {
	var body io.Reader
	if q.body != nil {
		b, err := json.Marshal(q.body)
		if err != nil {
			return atoll.E(q.op, q.id, atoll.ErrInvalid, err)
		}
		body = bytes.NewReader(b)
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	resp, err := c.send(ctx, q, body, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return c.readReply(ctx, resp, q)
}

// send makes a request and returns its successful answer, whose body the
// caller closes; it can be read while ctx lasts.
func (c *Client) send(ctx context.Context, q call, body io.Reader, header http.Header) (*http.Response, error) {
	req, err := c.request(ctx, q, body)
	if err != nil {
		return nil, err
	}
	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, v := range header {
		req.Header[name] = v
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.fault(ctx, q.op, q.id, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		return nil, ctxErr(ctx, c.answered(resp, readError(resp, q.op, q.id)))
	}
	return resp, nil
}

// request builds a request that ends with ctx or the client.
func (c *Client) request(ctx context.Context, q call, body io.Reader) (*http.Request, error) {
	if c.ctx.Err() != nil { // first, for ctx may have ended with it
		return nil, atoll.E(q.op, q.id, atoll.ErrUnavailable, errClientClosed)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	u := c.address().base + q.path
	if len(q.query) > 0 {
		u += "?" + q.query.Encode()
	}
	method := q.method
	if method == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, atoll.E(q.op, q.id, atoll.ErrInvalid, err)
	}
	if c.opts.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.opts.Token)
	}
	if id := RequestID(ctx); id != "" {
		req.Header.Set(RequestIDHeader, id)
	}
	c.opts.Inject(ctx, req.Header)
	return req, nil
}

// fault gives err, which came from the connection and not from the server, its
// kind.
func (c *Client) fault(ctx context.Context, op, id string, err error) error {
	if err == nil {
		return nil
	}
	if c.ctx.Err() != nil {
		return atoll.E(op, id, atoll.ErrUnavailable, errClientClosed)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return atoll.E(op, id, atoll.ErrUnavailable, brokenError{c.lost(err)})
}

// lost says of a connection that broke off with err, in words for people, what
// became of the server.
func (c *Client) lost(err error) error {
	if u, ok := err.(*url.Error); ok {
		err = u.Err
	}
	server := "the server"
	if c.opts.URL != "" {
		server += " at " + c.opts.URL
	}
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return lostError{server + " has gone", err}
		}
	}
	if err.Error() == closedIdle {
		return lostError{server + " has gone", err}
	}
	if closed, ok := errors.AsType[websocket.CloseError](err); ok {
		return lostError{strings.TrimSuffix(fmt.Sprintf("%s ended the connection: %s", server, closed.Reason), ": "), err}
	}
	return fmt.Errorf("server at %s: %w", c.where, err)
}

// closedIdle is what net/http says, and keeps for itself, where the server went just
// before the request was written.
const closedIdle = "http: server closed idle connection"

// A lostError is a cause, in other words.
type lostError struct {
	text  string
	cause error
}

func (e lostError) Error() string { return e.text }
func (e lostError) Unwrap() error { return e.cause }

// within returns a ctx that ends with the client too.
func (c *Client) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// segment makes s one segment of a path, whatever is in it.
func segment(s string) string {
	if s == "." || s == ".." {
		return strings.ReplaceAll(s, ".", "%2E")
	}
	return url.PathEscape(s)
}

var _ atoll.Provider = (*Client)(nil)
