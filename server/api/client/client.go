package client

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// Options configure a Client.
type Options struct {
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
	// Info is the result of Client.Info. If it is nil, New requests it from the server.
	Info *atoll.Info
	// Inject adds the trace context to the headers of a request. The default forwards the headers
	// that a Handler stored in the context.
	Inject func(ctx context.Context, h http.Header)
}

// A Client is a Provider that sends each call to the Handler of a server.
type Client struct {
	opts       Options
	endpoints  []*endpoint // at least one
	serverName string      // for errors: Options.URL or a placeholder
	http       *http.Client
	info       atoll.Info

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // goroutines that read connections
}

const (
	bufferSize  = 64 << 10         // size of a connection's buffers
	idleTimeout = 30 * time.Second // shorter than the server's idleTimeout, so that no request meets a closing connection
	maxIdle     = 64
	dialTimeout = 10 * time.Second // the most time for a dial
)

// Limits of responses, in bytes. A Client does not trust the server.
const (
	maxHead      int64 = 256 << 10 // all headers; one of them may hold a FileInfo
	maxReply     int64 = 1 << 20
	maxSpecReply int64 = 32 << 20 // a reply that contains a Spec or a command
	maxListReply int64 = 256 << 20
)

// New returns a client of the server in opts. Unless opts.Info is set it requests the Info of
// the server, bounded by ctx. Kinds: ErrInvalid (the URL), ErrUnavailable (no server answers),
// ErrDenied (the token).
func New(ctx context.Context, opts Options) (*Client, error) {
	c := &Client{opts: opts}
	if err := c.parseEndpoints(); err != nil {
		return nil, err
	}
	if c.opts.Inject == nil {
		c.opts.Inject = wire.SendTrace
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
			IdleConnTimeout:        idleTimeout,
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
	var info wire.ServerInfo
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

// joinContext returns a ctx that ends with ctx or with the client.
func (c *Client) joinContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

var (
	_ atoll.Combiner       = (*Client)(nil)
	_ atoll.ImageResolver  = (*Client)(nil)
	_ atoll.ImageStore     = (*Client)(nil)
	_ atoll.Preparer       = (*Client)(nil)
	_ atoll.Prober         = (*Client)(nil)
	_ atoll.ProjectLister  = (*Client)(nil)
	_ atoll.ProjectRemover = (*Client)(nil)
	_ atoll.Provider       = (*Client)(nil)
	_ atoll.Reserver       = (*Client)(nil)
	_ atoll.SecretKeeper   = (*Client)(nil)
	_ atoll.SnapshotStore  = (*Client)(nil)
	_ atoll.VolumeStore    = (*Client)(nil)
	_ pool.Reporter        = (*Client)(nil)
	_ registry.Reconciler  = (*Client)(nil)
	_ session.Manager      = (*Client)(nil)
	_ workspace.Manager    = (*Client)(nil)
)
