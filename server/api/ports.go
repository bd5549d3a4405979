package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/duplex"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func portRoutes() []Route {
	return []Route{
		{
			Method: "GET", Path: "/v1/sandboxes/{id}/dial", Name: "dialPort", Tag: "ports", Summary: "Connect to a port of a sandbox over an upgraded connection",
			Doc:    "Request an upgrade to `tcp`. After the status 101 the connection carries bytes both ways; each side may close its half.",
			Params: []Param{{Name: "port", Type: "integer", Required: true}},
			Status: http.StatusSwitchingProtocols, serve: (*Handler).serveDial,
		},
		{
			Path: "/v1/sandboxes/{id}/ports/{port}/{path...}", Name: "proxy", Tag: "ports",
			Summary: "Forward a request of any method, or a WebSocket, to an HTTP server in a sandbox",
			Doc: "The forwarded request does not have the token of this server, and its host is `localhost:PORT`; `X-Forwarded-Host` has that of the client. " +
				"Redirects and cookies of the response stay on the port. Its `Content-Security-Policy` gives pages an origin of their own, and headers that apply to the whole server are removed. " +
				"The tool `sandbox_port` gives links that open a port in a browser without a token: in place of `PORT` they have `PORT~LINK`, or a host of the port's own if the server has a domain for ports.",
			passThrough: true, serve: (*Handler).serveProxy,
		},
	}
}

func parsePort(s string) (int, error) {
	port, err := strconv.Atoi(s)
	if err != nil || port < 1 || port > 65535 {
		return 0, invalidError("port %q: must be within 1..65535", s)
	}
	return port, nil
}

func (h *Handler) serveDial(w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	port, err := parsePort(q.getString("port"))
	if err != nil {
		q.setError(err)
	}
	if q.err != nil {
		return q.err
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), wire.ProtocolTCP) {
		return invalidError("this operation is a tunnel: request an upgrade to %s", wire.ProtocolTCP)
	}
	ctx, done, err := h.beginStream(w, r)
	if err != nil {
		return err
	}
	defer done()
	sb, err := h.findSandbox(r)
	if err != nil {
		return err
	}
	inside, err := atoll.Dial(ctx, sb, port)
	if err != nil {
		return err
	}
	defer inside.Close()
	outside, err := hijackTunnel(w)
	if err != nil {
		return err
	}
	defer outside.Close()
	defer context.AfterFunc(ctx, func() {
		inside.Close()
		outside.Close()
	})()
	return alreadyAnswered(joinConns(inside, outside))
}

// hijackTunnel sends the status 101 and returns the connection.
func hijackTunnel(w http.ResponseWriter) (*tunnelConn, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, atoll.E("dial", "", atoll.ErrInternal, err)
	}
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+wire.ProtocolTCP+"\r\n\r\n")
	if err != nil {
		conn.Close()
		return nil, alreadyAnswered(err)
	}
	return &tunnelConn{Conn: conn, br: buffered.Reader}, nil
}

// A tunnelConn is a hijacked connection.
type tunnelConn struct {
	net.Conn
	br *bufio.Reader // may hold data that followed the request
}

// Read reads the buffered data first.
func (c *tunnelConn) Read(p []byte) (int, error) {
	if c.br.Buffered() > 0 {
		return c.br.Read(p)
	}
	return c.Conn.Read(p)
}

// CloseWrite closes the write half of the connection.
func (c *tunnelConn) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return fmt.Errorf("the connection does not support half-close: %w", http.ErrNotSupported)
}

// joinConns copies both ways until both sides have closed their halves, or one of them fails.
func joinConns(a, b net.Conn) error {
	var other error
	var wg sync.WaitGroup
	wg.Go(func() { other = copyHalf(a, b) })
	err := copyHalf(b, a)
	wg.Wait()
	return errors.Join(err, other)
}

// copyHalf copies src to dst and then closes the write half of dst.
func copyHalf(dst, src net.Conn) error {
	_, err := wire.CopyBuffer(dst, src)
	cw, ok := dst.(interface{ CloseWrite() error })
	if err == nil && ok {
		if err = cw.CloseWrite(); err == nil {
			return nil
		}
	}
	dst.Close() // also ends the other direction
	src.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// A portTarget is the destination of a proxied request.
type portTarget struct {
	*portRequest
	sb   atoll.Sandbox
	port int
	link *portLink // the credential of the request, or nil

	allowed bool // the response has headers that let a page of another origin read it
}

type targetKey struct{}

func (h *Handler) serveProxy(w http.ResponseWriter, r *http.Request) error {
	to := portTarget{portRequest: portRequestOf(r.Context()), link: linkOf(r.Context()), allowed: w.Header().Get("Access-Control-Allow-Origin") != ""}
	var err error
	if to.port, err = parsePort(to.portRequest.port); err != nil {
		return err
	}
	if to.sb, err = h.provider.Get(r.Context(), to.id); err != nil {
		return err
	}
	if to.link != nil {
		if err := to.link.checkSandbox(r.Context(), to.sb); err != nil {
			return err
		}
		if h.rememberLink(w, r, to) {
			return nil
		}
	}
	if to.path == "" {
		redirectTo(w, (&url.URL{Path: to.pathPrefix() + "/", RawQuery: r.URL.RawQuery}).String())
		return nil
	}
	ctx, done, err := h.beginStream(w, r)
	if err != nil {
		return err
	}
	defer done()
	h.proxy.ServeHTTP(w, duplex.Begin(w, r.WithContext(context.WithValue(ctx, targetKey{}, to))))
	return nil
}

// A finalTransport returns the final response of a program only: ReverseProxy passes on others, such as 103, with
// headers that nothing has checked, and then clears those of this server.
type finalTransport struct{ http.RoundTripper }

func (t finalTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.RoundTripper.RoundTrip(r.WithContext(untracedContext{r.Context()}))
}

// An untracedContext hides the httptrace.ClientTrace of a context.
type untracedContext struct{ context.Context }

func (c untracedContext) Value(key any) any {
	v := c.Context.Value(key)
	if _, traced := v.(*httptrace.ClientTrace); traced {
		return nil
	}
	return v
}

// newPortProxy returns the proxy to ports of sandboxes. It uses each connection once: connections
// are cheap, and none may outlive its sandbox.
func newPortProxy(h *Handler) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: finalTransport{&http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				to := ctx.Value(targetKey{}).(portTarget)
				return atoll.Dial(ctx, to.sb, to.port)
			},
			DisableKeepAlives:  true,
			DisableCompression: true,
		}},
		Rewrite:        h.rewriteRequest,
		ModifyResponse: rewriteResponse,
		FlushInterval:  -1, // flush at once
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			duplex.SetHeader(r.Context(), w.Header())
			if atoll.KindOf(err) == atoll.ErrInternal { // not from a provider: the server on the port does not speak HTTP, or hung up
				err = statusError{atoll.E("proxy", "", atoll.ErrUnavailable, err), http.StatusBadGateway}
			}
			writeError(w, wire.RequestID(r.Context()), err)
		},
		ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}
}

// pathPrefix returns the part of the path that names the port, which is empty if the host names it.
func (to portTarget) pathPrefix() string {
	if to.byHost {
		return ""
	}
	prefix := "/v1/sandboxes/" + to.sb.ID() + "/ports/" + strconv.Itoa(to.port)
	if to.inPath != "" {
		prefix += linkMark + to.inPath
	}
	return prefix
}

// rememberLink makes the browser remember a link in the query of a request as a cookie of the host that names the port:
// the addresses in a page do not have the link. If the browser shows a page, rememberLink sends it on to the address
// without the link and returns true.
func (h *Handler) rememberLink(w http.ResponseWriter, r *http.Request, to portTarget) (answered bool) {
	if !to.byHost || !slices.Contains(to.links, to.link.text) {
		return false
	}
	http.SetCookie(w, &http.Cookie{
		Name: linkCookie, Value: to.link.text, Path: "/", Expires: to.link.expires,
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: h.isSecure(r),
	})
	if r.Method != http.MethodGet || !strings.Contains(r.Header.Get("Accept"), "text/html") {
		return false
	}
	redirectTo(w, relativeLocation(r.URL))
	return true
}

// redirectTo sends a browser on to location with GET.
func redirectTo(w http.ResponseWriter, location string) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Location", location)
	w.WriteHeader(http.StatusSeeOther)
}

// relativeLocation returns u without scheme and host, so that it stays on its host.
func relativeLocation(u *url.URL) string {
	rest := url.URL{Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery}
	return "/" + strings.TrimLeft(rest.String(), "/")
}

// hasToken reports whether Authorization may have a token of this server, although a link has admitted the request.
func (h *Handler) hasToken(r *http.Request) bool {
	token := requestToken(Route{}, r)
	if token == "" {
		return false
	}
	_, err := h.verify(r.Context(), token)
	return atoll.KindOf(err) != atoll.ErrDenied
}

// rewriteRequest turns a request into one to the port.
func (h *Handler) rewriteRequest(pr *httputil.ProxyRequest) {
	to := pr.In.Context().Value(targetKey{}).(portTarget)
	pr.SetXForwarded()
	out := pr.Out
	out.Header.Del("X-Forwarded-Prefix")
	if prefix := to.pathPrefix(); prefix != "" {
		out.Header.Set("X-Forwarded-Prefix", prefix)
	}
	if h.isSecure(pr.In) {
		out.Header.Set("X-Forwarded-Proto", "https")
	}
	to.setHost(pr)
	if h.verify != nil && (to.link == nil || h.hasToken(pr.In)) {
		out.Header.Del("Authorization") // it has the token of this server
	}
	out.URL.Scheme, out.URL.Host = "http", pr.In.Host
	out.URL.RawQuery, out.URL.ForceQuery = pr.In.URL.RawQuery, pr.In.URL.ForceQuery // unchanged, even if invalid
	out.URL.Path, out.URL.RawPath = unescapePath(to.path), to.path
}
