package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll/internal/duplex"
)

// ServeHTTP serves a connection of a client that speaks HTTP and has sent head, until the client's connection is closed. It owns both
// connections.
func (g *Gateway) ServeHTTP(client net.Conn, head []byte, server net.Conn, dst netip.AddrPort) {
	http2 := bytes.HasPrefix(head, []byte("PRI "))
	head = bytes.TrimLeft(head, "\r\n") // which a request may begin with
	c := &conn{Conn: client, source: io.MultiReader(bytes.NewReader(head), client), dst: dst, interrupted: make(chan struct{}, 1), closed: make(chan struct{})}
	c.server.Store(&server)
	c.transport = &http.Transport{
		DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return g.dialServer(ctx, c) },
		DisableCompression:    true,
		ExpectContinueTimeout: continueTimeout,
		Protocols:             new(http.Protocols),
	}
	setProtocol(c.transport.Protocols, http2)
	serve := g.http1.Serve
	if http2 {
		serve = g.http2.Serve
	}
	_ = serve(&singleListener{conn: c}) // returns at once, with the error of the listener
	<-c.closed
	c.requests.Wait()
	c.transport.CloseIdleConnections()
	if unused := c.server.Swap(nil); unused != nil {
		_ = (*unused).Close()
	}
}

// continueTimeout is the time that a server has to agree to the body of a request with Expect: 100-continue.
const continueTimeout = time.Second

// setProtocol allows one version of HTTP only.
func setProtocol(p *http.Protocols, http2 bool) {
	p.SetHTTP1(!http2)
	p.SetUnencryptedHTTP2(http2)
}

// A conn is the connection of a client.
type conn struct {
	net.Conn
	source    io.Reader
	dst       netip.AddrPort
	server    atomic.Pointer[net.Conn] // the first connection to the server, until it is used
	transport *http.Transport
	requests  sync.WaitGroup

	interrupted chan struct{} // receives from SetReadDeadline
	closed      chan struct{}
	closing     sync.Once
}

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
		c.interrupted <- struct{}{}
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

// resetClient ends the connection to the client with a RST, if it can.
func (c *conn) resetClient() {
	if r, ok := c.Conn.(interface{ Reset() }); ok {
		r.Reset()
	}
}

// A singleListener has one connection.
type singleListener struct{ conn *conn }

// Accept returns the connection, and io.EOF after it.
func (l *singleListener) Accept() (net.Conn, error) {
	c := l.conn
	if l.conn = nil; c == nil {
		return nil, io.EOF
	}
	return c, nil
}

func (l *singleListener) Close() error { return nil }

func (l *singleListener) Addr() net.Addr { return &net.TCPAddr{} }

// dialServer returns the connection to the server that there is already, or another.
func (g *Gateway) dialServer(ctx context.Context, c *conn) (net.Conn, error) {
	if first := c.server.Swap(nil); first != nil {
		return *first, nil
	}
	return g.opts.Dial(ctx, c.dst)
}

type connKey struct{}

func connOf(ctx context.Context) *conn { return ctx.Value(connKey{}).(*conn) }

func (g *Gateway) newServer(http2 bool) *http.Server {
	s := &http.Server{
		Handler:                      http.HandlerFunc(g.serveRequest),
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            headerTimeout,
		ConnContext:                  func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ErrorLog:                     slog.NewLogLogger(g.opts.Log.Handler(), slog.LevelDebug),
		Protocols:                    new(http.Protocols),
	}
	setProtocol(s.Protocols, http2)
	return s
}

// headerTimeout is the time that a client has for the header of a request.
const headerTimeout = time.Minute

// serveRequest serves one request.
func (g *Gateway) serveRequest(w http.ResponseWriter, r *http.Request) {
	c := connOf(r.Context())
	c.requests.Add(1)
	defer c.requests.Done()
	r = duplex.Begin(w, r)
	if host, reason := g.checkRequest(c, r); reason != "" {
		g.opts.Refused(host, c.dst, reason)
		refuseRequest(w, r, strings.TrimPrefix(host+": "+reason, ": "))
		return
	}
	defer func() {
		if failed := recover(); failed != nil {
			c.resetClient() // as the server did
			panic(failed)
		}
	}()
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		r.Header.Del("Upgrade") // after which nothing would be checked
	}
	// Without a value, net/http adds neither to a response.
	w.Header()["Date"], w.Header()["Content-Type"] = nil, nil
	g.proxy.ServeHTTP(w, r)
}

// checkRequest returns the host that the request is for, and why it must not go to the server, "" if it may.
func (g *Gateway) checkRequest(c *conn, r *http.Request) (host, reason string) {
	host, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		host, port = r.Host, ""
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	switch {
	case r.Method == http.MethodConnect:
		return host, "it asks a proxy for a connection, which could lead anywhere: allow the proxy by its address"
	case port != "" && port != strconv.Itoa(int(c.dst.Port())):
		return host, fmt.Sprintf("it is for port %s, and its connection for port %d", port, c.dst.Port())
	}
	return host, g.opts.CheckHost(host, c.dst)
}

// After a refusal, refuseRequest reads as much of the body for as long: many clients of HTTP/1 read no response before they have sent a body.
const (
	maxRefusedBody  = 64 << 20
	refusedBodyTime = 5 * time.Second
)

// refuseRequest tells the client the reason.
func refuseRequest(w http.ResponseWriter, r *http.Request, reason string) {
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	if r.ProtoMajor == 1 {
		header.Set("Connection", "close")
	}
	w.WriteHeader(http.StatusForbidden)
	fmt.Fprintf(w, "Atoll refused this request: %s\n", reason)
	if r.ProtoMajor != 1 {
		return
	}
	control := http.NewResponseController(w)
	_ = control.Flush()
	_ = control.SetReadDeadline(time.Now().Add(refusedBodyTime))
	_, _ = io.CopyN(io.Discard, r.Body, maxRefusedBody)
}

func (g *Gateway) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:      transport{},
		Rewrite:        rewriteRequest,
		ModifyResponse: modifyResponse,
		FlushInterval:  -1, // flush at once
		BufferPool:     buffers{},
		ErrorLog:       slog.NewLogLogger(g.opts.Log.Handler(), slog.LevelDebug),
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			g.opts.Log.Debug("http", "address", connOf(r.Context()).dst.String(), "err", err)
			panic(http.ErrAbortHandler) // so that the client sees what it would see without a gateway
		},
	}
}

// A transport sends a request on the connection to the server of its client.
type transport struct{}

func (transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return connOf(r.Context()).transport.RoundTrip(r)
}

// rewriteRequest addresses a request to the address of the client's connection, with the path as the client wrote it.
func rewriteRequest(pr *httputil.ProxyRequest) {
	path, query, hasQuery := strings.Cut(pr.In.RequestURI, "?")
	if pr.In.URL.IsAbs() { // as to a proxy
		_, path, _ = strings.Cut(path, "://")
		slash := strings.IndexByte(path, '/')
		if path = "/" + path[slash+1:]; slash < 0 {
			path = "/"
		}
	}
	pr.Out.URL = &url.URL{Scheme: "http", Host: connOf(pr.In.Context()).dst.String(), RawQuery: query, ForceQuery: hasQuery && query == ""}
	if pr.Out.URL.Opaque = path; strings.HasPrefix(path, "//") { // which would be the address of another host
		pr.Out.URL.Opaque, pr.Out.URL.Path, pr.Out.URL.RawPath = "", pr.In.URL.Path, pr.In.URL.RawPath
	}
	pr.Out.Host, pr.Out.Trailer = pr.In.Host, pr.In.Trailer
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} { // which ReverseProxy has removed
		if values, ok := pr.In.Header[name]; ok {
			pr.Out.Header[name] = values
		}
	}
}

// modifyResponse makes the connection to the client end if that to the server does. It lets the body of a response on HTTP/2 be closed
// without waiting: the transport waits there for the end of the request (https://go.dev/issue/80085).
func modifyResponse(res *http.Response) error {
	ctx := res.Request.Context()
	switch {
	case res.ProtoMajor == 2:
		res.Body = patientBody{res.Body, &connOf(ctx).requests}
	case res.StatusCode == http.StatusSwitchingProtocols:
	case res.Close:
		res.Header.Set("Connection", "close")
	default:
		duplex.SetHeader(ctx, res.Header)
	}
	return nil
}

// A patientBody is closed in the background.
type patientBody struct {
	io.ReadCloser
	running *sync.WaitGroup
}

func (b patientBody) Close() error {
	b.running.Go(func() { _ = b.ReadCloser.Close() })
	return nil
}

// buffers are the buffers of bodies.
type buffers struct{}

var bufferPool = sync.Pool{New: func() any {
	b := make([]byte, 32<<10)
	return &b
}}

func (buffers) Get() []byte { return *bufferPool.Get().(*[]byte) }

func (buffers) Put(b []byte) { bufferPool.Put(&b) }
