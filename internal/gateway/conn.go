package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll/internal/egress"
)

// A conn is the connection of a client, with its connections to the server.
type conn struct {
	net.Conn
	gateway   *Gateway
	ctx       context.Context
	source    io.Reader // of what the client says
	to        Target
	transport *http.Transport

	// With TLS:
	serverName string // that the client asked for; "" without TLS
	protocol   string // of HTTP, as TLS names it; "" if the server has chosen none
	failure    string // why no request can go to the server; "" if it can

	interrupted chan struct{} // receives from SetReadDeadline
	closed      chan struct{}
	closing     sync.Once

	requests sync.WaitGroup // Add under mu, while not over

	mu       sync.Mutex
	over     bool                     // there are no more requests and connections; guarded by mu
	first    net.Conn                 // to the server, one of servers or TLS over one, until it is used; guarded by mu
	servers  map[*serverConn]struct{} // open connections to the server; guarded by mu
	dialling int                      // connections to the server that are being made; guarded by mu
	accepted map[string]bool          // hosts of earlier requests; guarded by mu

	exchanges map[*exchange]struct{} // that have passed the rules, and have not ended; guarded by mu
}

// The largest numbers of connections to the server at once, of which there are several only if a server of HTTP/2 allows few requests on
// each, and of hosts that are remembered.
const (
	maxServers  = 16
	maxAccepted = 16
)

var (
	errOver        = errors.New("the connection of the client has ended")
	errManyServers = errors.New("the client needs too many connections to the server")
)

// Read reads from the client. net/http reads one byte while it serves a request, to cancel it at the client's end; but a client may end its
// side and wait for the response. So such a read waits until net/http interrupts it.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.source.Read(p)
	if err != io.EOF || len(p) != 1 {
		return n, err
	}
	select {
	case <-c.interrupted:
		return 0, os.ErrDeadlineExceeded
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

// SetReadDeadline interrupts a read at the client's end if the deadline has passed.
func (c *conn) SetReadDeadline(t time.Time) error {
	select {
	case <-c.interrupted: // of an earlier deadline
	default:
	}
	if !t.IsZero() && !t.After(time.Now()) {
		select {
		case c.interrupted <- struct{}{}:
		default:
		}
	}
	return c.Conn.SetReadDeadline(t)
}

// CloseWrite ends the data to the client.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (c *conn) Close() error {
	defer c.closing.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// abortAll ends all connections at once.
func (c *conn) abortAll() {
	c.resetClient() // while its close takes time
	c.endAll()
}

// resetClient ends the connection to the client with a RST, if it can.
func (c *conn) resetClient() {
	if r, ok := c.Conn.(interface{ Reset() }); ok {
		r.Reset()
	}
}

// endAll closes all connections, and lets none begin.
func (c *conn) endAll() {
	c.mu.Lock()
	c.over = true
	all := make([]net.Conn, 0, len(c.servers)+1)
	for s := range c.servers {
		all = append(all, s.Conn)
	}
	c.first = nil
	c.mu.Unlock()
	for _, open := range append(all, c) {
		_ = open.Close()
	}
}

// beginRequest counts a request, for which the caller has to call c.requests.Done. It returns false if the connection is over.
func (c *conn) beginRequest() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.requests.Add(1)
	}
	return !c.over
}

// checkHost returns why a request for host must not go to the server, nil if it may. A host that was accepted once remains so: the client
// asks DNS no more while it has the connection.
func (c *conn) checkHost(host string) *refusal {
	c.mu.Lock()
	accepted := c.accepted[host]
	c.mu.Unlock()
	if accepted {
		return nil
	}
	if reason, opens := c.to.CheckHost(host); reason != "" {
		why := refuseWith("%s", reason)
		why.opens = opens
		return why
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.accepted) < maxAccepted {
		c.accepted[host] = true
	}
	return nil
}

// setRequest records the request of x, which the rules let pass. It returns false if these are not the current rules any more.
func (x *exchange) setRequest(q *egress.Request) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	kept := *q
	if kept.Header = nil; x.policy.UsesHeaders() {
		kept.Header = q.Header.Clone() // placeholders in the other are replaced
	}
	x.request = &kept
	x.exchanges[x] = struct{}{}
	return x.gateway.rules.Load() == x.policy
}

// endRequest removes the request of x.
func (c *conn) endRequest(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.exchanges, x)
}

// isRefused reports whether the rules, or the target, refuse a host or a request of the connection now.
func (c *conn) isRefused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for host := range c.accepted {
		if c.to.StillAllowed != nil && !c.to.StillAllowed(host) {
			return true
		}
	}
	rules := c.gateway.rules.Load()
	for x := range c.exchanges {
		_, reason := rules.CheckRequest(x.request)
		if reason != "" || x.request.Header == nil && rules.UsesHeaders() { // nobody knows its headers any more
			return true
		}
	}
	return false
}

// dialServer returns the connection to the server that there is already, or another.
func (c *conn) dialServer(ctx context.Context, _, _ string) (net.Conn, error) {
	server, _, err := c.connectServer(ctx)
	return server, err
}

// connectServer returns the connection to the server that there is already, or another, and reports which.
func (c *conn) connectServer(ctx context.Context) (server net.Conn, another bool, err error) {
	first, err := c.beginServer()
	if err != nil || first != nil {
		return first, false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	raw, err := c.gateway.opts.Dial(ctx, c.to.Addr)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dialling--
	if err == nil && c.over {
		_ = raw.Close()
		err = errOver
	}
	if err != nil {
		return nil, true, err
	}
	return c.addServer(raw), true, nil
}

// beginServer returns the first connection to the server if that is not used yet. Otherwise it counts one more that is dialled.
func (c *conn) beginServer() (first net.Conn, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil, errOver
	}
	if first, c.first = c.first, nil; first != nil {
		return first, nil
	}
	if len(c.servers)+c.dialling >= maxServers {
		return nil, errManyServers
	}
	c.dialling++
	return nil, nil
}

// trackServer returns a connection to the server that ends with all others.
func (c *conn) trackServer(raw net.Conn) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addServer(raw)
}

// addServer adds a connection to the server. The caller holds mu.
func (c *conn) addServer(raw net.Conn) *serverConn {
	s := &serverConn{Conn: raw, client: c}
	c.servers[s] = struct{}{}
	return s
}

// A serverConn is a connection to the server.
type serverConn struct {
	net.Conn
	client *conn
}

func (s *serverConn) Close() error {
	err := s.Conn.Close()
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	delete(s.client.servers, s)
	return err
}

// A prefixed is a connection of which some data have been read already.
type prefixed struct {
	net.Conn
	source io.Reader
}

func newPrefixed(c net.Conn, data []byte) net.Conn {
	return &prefixed{c, io.MultiReader(bytes.NewReader(data), c)}
}

func (p *prefixed) Read(b []byte) (int, error) { return p.source.Read(b) }
