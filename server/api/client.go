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

// ClientOptions configure a Client.
type ClientOptions struct {
	// URL is http://host:port, https://host:port or unix:///path/of/the/socket. It may have several
	// of these, separated by commas, for servers that share a store; a Client sends each request to
	// the first one that answers. It may be empty if Dial is set.
	URL string
	// Patience is the time for which a Client retries a call, from the first failure, if the server
	// cannot be reached, has died or is closing. A Client repeats each call that the server did not
	// begin, and of the others those that are safe to repeat: reads, start, stop, remove, opening a
	// session, and a Create with an ID of its own. Streams of a process resume at their offset, a
	// Watch reports the changes, and the read of a file resumes if the file is the same. With 0, a
	// Client sends a call that no server began to each other server of URL, once.
	Patience time.Duration
	// Token is the bearer token. If it is empty, requests have none.
	Token string
	// Dial connects to the server. It overrides the address in URL.
	Dial func(ctx context.Context) (net.Conn, error)
	// Info is the result of Client.Info. If it is nil, NewClient requests it from the server.
	Info *atoll.Info
	// Inject adds the trace context to the headers of a request. The default forwards the headers
	// that a Handler stored in the context.
	Inject func(ctx context.Context, h http.Header)
}

// A Client is a Provider that sends each call to the Handler of a server.
type Client struct {
	opts       ClientOptions
	endpoints  []*endpoint // at least one
	serverName string      // for errors: ClientOptions.URL or a placeholder
	http       *http.Client
	info       atoll.Info

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // goroutines that read connections
}

const (
	bufferSize      = 64 << 10         // size of a connection's buffers
	clientIdle      = 30 * time.Second // shorter than the server's idleTimeout, so that no request meets a closing connection
	maxIdle         = 64
	connectionLimit = 10 * time.Second // the most time for a dial
)

// Limits of responses, in bytes. A Client does not trust the server.
const (
	maxHead      int64 = 256 << 10 // all headers; one of them may hold a FileInfo
	maxReply     int64 = 1 << 20
	maxSpecReply int64 = 32 << 20 // a reply that contains a Spec or a command
	maxListReply int64 = 256 << 20
)

// NewClient returns a client of the server in opts. Unless opts.Info is set it requests the Info of
// the server, bounded by ctx. Kinds: ErrInvalid (the URL), ErrUnavailable (no server answers),
// ErrDenied (the token).
func NewClient(ctx context.Context, opts ClientOptions) (*Client, error) {
	c := &Client{opts: opts}
	if err := c.parseEndpoints(); err != nil {
		return nil, err
	}
	if c.opts.Inject == nil {
		c.opts.Inject = sendTrace
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, host string) (net.Conn, error) {
				return c.dialEndpoint(ctx, c.endpointByHost(host))
			},
			DialTLSContext: func(ctx context.Context, _, host string) (net.Conn, error) {
				return c.dialEndpoint(ctx, c.endpointByHost(host))
			},
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
	if err := c.callServer(ctx, call{op: "info", path: "/v1/info", reply: &info, noRetry: true}); err != nil {
		c.Close()
		return nil, err
	}
	c.info = info.Info
	return c, nil
}

// Info implements atoll.Provider.
func (c *Client) Info() atoll.Info { return c.info }

// Close ends the connections. Pending calls and watches return ErrUnavailable. The server, its
// sandboxes and their processes continue.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.http.CloseIdleConnections()
	c.work.Wait()
	return nil
}

// beginWork registers work that Close waits for. The caller must call c.work.Done.
func (c *Client) beginWork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClientClosed
	}
	c.work.Add(1)
	return nil
}

var errClientClosed = fmt.Errorf("the client is closed")

// A call is one request with a JSON reply.
type call struct {
	op, id       string // for errors that the client makes
	method, path string // method "" means GET
	query        url.Values
	body         any           // encoded as JSON unless nil
	reply        any           // receives the JSON reply unless nil
	replyLimit   int64         // largest reply in bytes; 0 means maxReply
	idempotent   bool          // safe to repeat; a GET always is
	noRetry      bool          // fail at once if no server answers
	undoTimeout  time.Duration // how long callUndoable waits for the server to undo it
}

// callServer sends a request and decodes the reply. It retries as ClientOptions.Patience allows. If
// ctx ends first it returns the error of ctx.
func (c *Client) callServer(ctx context.Context, q call) error {
	t := retrier{c: c}
	if q.noRetry {
		t.deadline = time.Now()
	}
	for {
		err := c.callOnce(ctx, q)
		if err == nil || !t.allowRetry(ctx, err, q.isRepeatable()) {
			return ctxErr(ctx, err)
		}
	}
}

// isRepeatable reports whether the request is safe to repeat.
func (q call) isRepeatable() bool {
	return q.idempotent || q.method == "" || q.method == http.MethodGet
}

func (c *Client) callOnce(ctx context.Context, q call) error {
	var body io.Reader
	if q.body != nil {
		b, err := json.Marshal(q.body)
		if err != nil {
			return atoll.E(q.op, q.id, atoll.ErrInvalid, err)
		}
		body = bytes.NewReader(b)
	}
	ctx, cancel := c.joinContext(ctx)
	defer cancel()
	resp, err := c.sendRequest(ctx, q, body, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return c.readReply(ctx, resp, q)
}

// sendRequest sends a request and returns its successful response. The caller must close the body,
// which is readable until ctx ends.
func (c *Client) sendRequest(ctx context.Context, q call, body io.Reader, header http.Header) (*http.Response, error) {
	req, err := c.newRequest(ctx, q, body)
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
		return nil, c.wrapConnError(ctx, q.op, q.id, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		return nil, ctxErr(ctx, c.backOffIfClosing(resp, readError(resp, q.op, q.id)))
	}
	return resp, nil
}

// newRequest returns a request that ends with ctx or the client.
func (c *Client) newRequest(ctx context.Context, q call, body io.Reader) (*http.Request, error) {
	if c.ctx.Err() != nil { // check this first: ctx may have ended with the client
		return nil, atoll.E(q.op, q.id, atoll.ErrUnavailable, errClientClosed)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	u := c.pickEndpoint().base + q.path
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

// wrapConnError returns err, an error of the connection and not of the server, as an *atoll.Error.
func (c *Client) wrapConnError(ctx context.Context, op, id string, err error) error {
	if err == nil {
		return nil
	}
	if c.ctx.Err() != nil {
		return atoll.E(op, id, atoll.ErrUnavailable, errClientClosed)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return atoll.E(op, id, atoll.ErrUnavailable, brokenConnError{c.describeLoss(err)})
}

// describeLoss returns err, the error of a broken connection, with a message for people.
func (c *Client) describeLoss(err error) error {
	if u, ok := err.(*url.Error); ok {
		err = u.Err
	}
	server := "the server"
	if c.opts.URL != "" {
		server += " at " + c.opts.URL
	}
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return rewordedError{server + " has gone", err}
		}
	}
	if err.Error() == idleClosedText {
		return rewordedError{server + " has gone", err}
	}
	if closed, ok := errors.AsType[websocket.CloseError](err); ok {
		return rewordedError{strings.TrimSuffix(fmt.Sprintf("%s ended the connection: %s", server, closed.Reason), ": "), err}
	}
	return fmt.Errorf("server at %s: %w", c.serverName, err)
}

// idleClosedText is the text of an unexported error of net/http. It means that the server closed an
// idle connection just before the client wrote the request.
const idleClosedText = "http: server closed idle connection"

// A rewordedError replaces the message of its cause.
type rewordedError struct {
	text  string
	cause error
}

func (e rewordedError) Error() string { return e.text }
func (e rewordedError) Unwrap() error { return e.cause }

// joinContext returns a ctx that ends with ctx or with the client.
func (c *Client) joinContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// pathSegment escapes s for use as one segment of a URL path.
func pathSegment(s string) string {
	if s == "." || s == ".." {
		return strings.ReplaceAll(s, ".", "%2E")
	}
	return url.PathEscape(s)
}

var _ atoll.Provider = (*Client)(nil)
