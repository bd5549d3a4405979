package gateway

import (
	"bytes"
	"cmp"
	"context"
	"errors"
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
	"github.com/seed46cd37a8/atoll/internal/egress"
)

// ServeHTTP serves a connection of a client that speaks HTTP, until the client's connection is closed or ctx ends. It owns both connections,
// of which head is the beginning.
func (g *Gateway) ServeHTTP(ctx context.Context, client net.Conn, head Head, server net.Conn, to Target) {
	c := g.newConn(ctx, client, to)
	said := bytes.TrimLeft(head.Client, "\r\n") // with which a request may begin
	c.source = io.MultiReader(bytes.NewReader(said), client)
	if len(head.Server) > 0 {
		server = newPrefixed(server, head.Server)
	}
	c.first = c.trackServer(server)
	defer context.AfterFunc(ctx, c.abortAll)()
	c.serveRequests(bytes.HasPrefix(head.Client, []byte("PRI ")))
}

// newConn returns the connection of a client, whose first and source are to be set.
func (g *Gateway) newConn(ctx context.Context, client net.Conn, to Target) *conn {
	return &conn{
		Conn: client, gateway: g, ctx: ctx, to: to, interrupted: make(chan struct{}, 1), closed: make(chan struct{}),
		servers: map[*serverConn]struct{}{}, accepted: map[string]bool{}, exchanges: map[*exchange]struct{}{},
	}
}

// serveRequests serves the requests of a client, until its connection is closed.
func (c *conn) serveRequests(http2 bool) {
	defer c.gateway.addConn(c)()
	c.transport = &http.Transport{
		DialContext:           c.dialServer,
		DialTLSContext:        c.dialSecure,
		DisableCompression:    true,
		ExpectContinueTimeout: continueTimeout,
		Protocols:             new(http.Protocols),

		MaxResponseHeaderBytes: maxResponseHeader,
	}
	setProtocol(c.transport.Protocols, http2)
	c.transport.Protocols.SetHTTP2(http2) // in TLS
	serve := c.gateway.http1.Serve
	if http2 {
		serve = c.gateway.http2.Serve
	}
	_ = serve(&singleListener{conn: c}) // returns at once, with the error of the listener
	<-c.closed
	c.endAll()
	c.requests.Wait()
	c.transport.CloseIdleConnections()
}

// maxResponseHeader is the size in bytes of the longest header of a response.
const maxResponseHeader = 256 << 10

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
		MaxHeaderBytes:               maxHeader,
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

// The largest header of a request that the gateway accepts, in bytes, and in fields: it has to hold those of all requests at once.
const (
	maxHeader = 64 << 10
	maxFields = 200
)

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
	x := &exchange{conn: c, policy: c.gateway.rules.Load(), port: int(c.to.Addr.Port())}
	x.beginEvent(r)
	defer x.endEvent()
	defer c.endRequest(x)
	if refused := x.prepareRequest(r); refused != nil {
		x.refuseExchange(w, r, refused)
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
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
	g.proxy.ServeHTTP(plainWriter{w, x}, r)
}

// A plainWriter adds nothing to the headers of a response, puts placeholders into those that come before the response, and counts its body.
type plainWriter struct {
	http.ResponseWriter
	x *exchange
}

func (w plainWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.x.traffic.received.Add(int64(n))
	return n, err
}

func (w plainWriter) WriteHeader(status int) {
	if status < 200 {
		w.x.changeHeader(w.Header())
	} else {
		for _, name := range []string{"Date", "Content-Type"} {
			if _, ok := w.Header()[name]; !ok {
				w.Header()[name] = nil // net/http adds it unless it is there, if without a value
			}
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w plainWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// checkTarget returns the host that the request is for, and why it must not go to the server, nil if it may. The server gets the host as it
// is, so it must have nothing at which a server could end it.
func (c *conn) checkTarget(r *http.Request) (host string, why *refusal) {
	invalid := refuseWith("it names no valid host")
	host, port, hasPort := strings.Cut(strings.ToLower(r.Host), ":")
	if strings.HasPrefix(host, "[") {
		host, port, hasPort = strings.Cut(strings.ToLower(r.Host[1:]), "]")
		if _, err := netip.ParseAddr(host); err != nil || hasPort && port != "" && !strings.HasPrefix(port, ":") {
			return strings.ToLower(r.Host), invalid
		}
		port = strings.TrimPrefix(port, ":")
		hasPort = port != ""
	} else if strings.ContainsFunc(host, isStrange) {
		return strings.ToLower(r.Host), invalid
	}
	host = strings.TrimSuffix(host, ".")
	if !egress.ValidHost(host) {
		if _, err := netip.ParseAddr(host); err != nil && host != "" {
			return strings.ToLower(r.Host), invalid
		}
	}
	switch {
	case targetOf(r) == "" && r.Method != http.MethodConnect:
		return host, refuseWith("its path could lead a server to another one")
	case len(r.Header) > maxFields:
		why := refuseWith("it has more than %d headers", maxFields)
		why.status = http.StatusRequestHeaderFieldsTooLarge
		return host, why
	case r.Method == http.MethodConnect:
		return host, refuseWith("it asks a proxy for a connection, which could lead anywhere: allow the proxy by its address")
	case strings.Contains(port, ":"):
		return strings.ToLower(r.Host), invalid
	case hasPort && port != strconv.Itoa(int(c.to.Addr.Port())):
		return host, refuseWith("it is for port %s, and its connection for port %d", port, c.to.Addr.Port())
	case c.serverName != "" && host != c.serverName:
		return host, refuseWith("it is in a connection for %s", c.serverName)
	case c.failure != "":
		return host, refuseWith("%s", c.failure)
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
func refuseRequest(w http.ResponseWriter, r *http.Request, status int, reason string) {
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	if r.ProtoMajor == 1 {
		header.Set("Connection", "close")
	}
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(refusedBodyTime)) // or a client that reads nothing keeps it for ever
	w.WriteHeader(status)
	fmt.Fprintf(w, "Atoll refused this request: %s\n", reason)
	if r.ProtoMajor != 1 || r.Body == nil {
		return
	}
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
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			x := exchangeOf(r.Context())
			if refused := (*refusal)(nil); errors.As(err, &refused) {
				x.refuseExchange(w, r, refused)
				return
			}
			x.failEvent(err)
			g.opts.Log.Debug("http", "address", x.to.Addr.String(), "err", x.event.Reason)
			panic(http.ErrAbortHandler) // so that the client sees what it would see without a gateway
		},
	}
}

// A transport sends a request on the connection to the server of its client.
type transport struct{}

func (transport) RoundTrip(r *http.Request) (*http.Response, error) {
	x := exchangeOf(r.Context())
	if x.redirect != nil {
		return x.gateway.redirects.RoundTrip(r)
	}
	return x.transport.RoundTrip(r)
}

// rewriteRequest addresses a request to the address of the client's connection, with the path as the client wrote it.
func rewriteRequest(pr *httputil.ProxyRequest) {
	path, query, hasQuery := strings.Cut(targetOf(pr.In), "?")
	x := exchangeOf(pr.In.Context())
	pr.Out.URL = &url.URL{Scheme: "http", Host: x.to.Addr.String(), RawQuery: query, ForceQuery: hasQuery && query == ""}
	if x.serverName != "" {
		pr.Out.URL.Scheme = "https"
	}
	if pr.Out.URL.Opaque = path; strings.HasPrefix(path, "//") { // which would be the address of another host
		pr.Out.URL.Opaque, pr.Out.URL.Path, pr.Out.URL.RawPath = "", pr.In.URL.Path, pr.In.URL.RawPath
	}
	pr.Out.Host, pr.Out.Trailer = pr.In.Host, pr.In.Trailer
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} { // which ReverseProxy has removed
		if values, ok := pr.In.Header[name]; ok {
			pr.Out.Header[name] = values
		}
	}
	x.changeURL(pr.Out)
	x.setHeaders(pr.Out)
}

// targetOf returns the path and the query of a request, which the server gets and whose path the rules have seen. It returns "" for a
// request whose path servers could take for another one.
func targetOf(r *http.Request) string {
	target := r.RequestURI
	switch {
	case r.Method == http.MethodOptions && target == "*":
		return target
	case strings.ContainsFunc(target, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '#' }), r.URL.Opaque != "":
		return ""
	case strings.HasPrefix(target, "/"):
	case r.ProtoMajor == 1 && r.URL.Host != "" && (r.URL.Scheme == "http" || r.URL.Scheme == "https"): // as to a proxy
		target = target[len(r.URL.Scheme+"://"):]
		end := strings.IndexAny(target, "/?")
		if end < 0 {
			return "/"
		}
		if target = target[end:]; target[0] == '?' {
			target = "/" + target
		}
	default:
		return ""
	}
	if seen, err := url.ParseRequestURI(target); err != nil || seen.Path != cmp.Or(r.URL.Path, "/") {
		return ""
	}
	return target
}

// modifyResponse makes the connection to the client end if that to the server does. It lets the body of a response on HTTP/2 be closed
// without waiting: the transport waits there for the end of the request (https://go.dev/issue/80085).
func modifyResponse(res *http.Response) error {
	ctx := res.Request.Context()
	if err := exchangeOf(ctx).changeResponse(res); err != nil {
		return err
	}
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
	b := make([]byte, 64<<10)
	return &b
}}

func (buffers) Get() []byte { return *bufferPool.Get().(*[]byte) }

func (buffers) Put(b []byte) { bufferPool.Put(&b) }
