package gateway

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll/internal/duplex"
)

// ServeHTTP serves a connection of a client that speaks HTTP, until the client's connection is closed or ctx ends. It owns both connections,
// of which head is the beginning.
func (g *Gateway) ServeHTTP(ctx context.Context, client net.Conn, head Head, server net.Conn, dst netip.AddrPort) {
	http2 := bytes.HasPrefix(head.Client, []byte("PRI "))
	said := bytes.TrimLeft(head.Client, "\r\n") // with which a request may begin
	c := &conn{
		Conn: client, gateway: g, ctx: ctx, source: io.MultiReader(bytes.NewReader(said), client), dst: dst,
		interrupted: make(chan struct{}, 1), closed: make(chan struct{}),
		first: server, servers: map[*serverConn]struct{}{}, accepted: map[string]bool{},
	}
	if len(head.Server) > 0 {
		c.first = newPrefixed(server, head.Server)
	}
	c.transport = &http.Transport{
		DialContext:           c.dialServer,
		DisableCompression:    true,
		ExpectContinueTimeout: continueTimeout,
		Protocols:             new(http.Protocols),
	}
	setProtocol(c.transport.Protocols, http2)
	serve := g.http1.Serve
	if http2 {
		serve = g.http2.Serve
	}
	defer context.AfterFunc(ctx, func() {
		c.resetClient() // at once, while its close takes time
		c.endAll()
	})()
	_ = serve(&singleListener{conn: c}) // returns at once, with the error of the listener
	<-c.closed
	c.endAll()
	c.requests.Wait()
	c.transport.CloseIdleConnections()
}

// continueTimeout is the time that a server has to agree to the body of a request with Expect: 100-continue.
const continueTimeout = time.Second

// setProtocol allows one version of HTTP only.
func setProtocol(p *http.Protocols, http2 bool) {
	p.SetHTTP1(!http2)
	p.SetUnencryptedHTTP2(http2)
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
	s.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: maxStreams}
	return s
}

// maxStreams is the number of requests at once on a connection of HTTP/2, as most servers have it: a server that allows less gets more
// connections.
const maxStreams = 100

// headerTimeout is the time that a client has for the header of a request.
const headerTimeout = time.Minute

// serveRequest serves one request.
func (g *Gateway) serveRequest(w http.ResponseWriter, r *http.Request) {
	c := connOf(r.Context())
	if !c.beginRequest() {
		panic(http.ErrAbortHandler)
	}
	defer c.requests.Done()
	r = duplex.Begin(w, r)
	if host, reason := g.checkRequest(c, r); reason != "" {
		g.opts.Refused(host, c.dst, reason)
		refuseRequest(w, r, strings.TrimPrefix(host+": "+reason, ": "))
		return
	}
	if r.ProtoMajor == 1 {
		defer func() {
			if failed := recover(); failed != nil {
				c.resetClient() // as the server did
				panic(failed)
			}
		}()
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		r.Header.Del("Upgrade") // after which nothing would be checked
	}
	g.proxy.ServeHTTP(plainWriter{w}, r)
}

// A plainWriter adds nothing to the headers of a response.
type plainWriter struct{ http.ResponseWriter }

func (w plainWriter) WriteHeader(status int) {
	if status >= 200 {
		for _, name := range []string{"Date", "Content-Type"} {
			if _, ok := w.Header()[name]; !ok {
				w.Header()[name] = nil // net/http adds it unless it is there, if without a value
			}
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w plainWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// checkRequest returns the host that the request is for, and why it must not go to the server, "" if it may. The server gets the host as it
// is, so it must have nothing at which a server could end it.
func (g *Gateway) checkRequest(c *conn, r *http.Request) (host, reason string) {
	host, port, hasPort := strings.Cut(strings.ToLower(r.Host), ":")
	host = strings.TrimSuffix(host, ".")
	switch {
	case r.Method == http.MethodConnect:
		return host, "it asks a proxy for a connection, which could lead anywhere: allow the proxy by its address"
	case strings.HasPrefix(host, "["):
		address, _, _ := strings.Cut(r.Host[1:], "]")
		return address, cmp.Or(g.opts.CheckHost(address, c.dst), "it names no valid host")
	case strings.ContainsFunc(host, isStrange) || strings.Contains(port, ":"):
		return strings.ToLower(r.Host), "it names no valid host"
	case hasPort && port != strconv.Itoa(int(c.dst.Port())):
		return host, fmt.Sprintf("it is for port %s, and its connection for port %d", port, c.dst.Port())
	}
	return host, c.checkHost(host)
}

// isStrange reports whether no name of a host has the character r, which is not in upper case.
func isStrange(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
}

// After a refusal, refuseRequest reads at most so many bytes of the body for at most so long: many clients of HTTP/1 read no response before
// they have sent a body.
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
