package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
)

func portRoutes() []Route {
	return []Route{
		{
			Method: "GET", Path: "/v1/sandboxes/{id}/dial", Name: "dial", Tag: "ports", Summary: "Connect to a port inside, over an upgraded connection",
			Doc:    "Ask for an upgrade to `tcp`. After the answer 101 the connection carries bytes both ways; each side may close its half.",
			Params: []Param{{Name: "port", Type: "integer", Required: true}},
			Status: http.StatusSwitchingProtocols, serve: (*Handler).serveDial,
		},
		{
			Path: "/v1/sandboxes/{id}/ports/{port}/{path...}", Name: "proxy", Tag: "ports",
			Summary: "Pass a request, of any method, to an HTTP server inside; WebSockets too",
			Doc:     "The token that this server asks for is not passed on.",
			foreign: true, serve: (*Handler).serveProxy,
		},
	}
}

const protocolTCP = "tcp" // of the upgrade that makes a connection a tunnel

func parsePort(s string) (int, error) {
	port, err := strconv.Atoi(s)
	if err != nil || port < 1 || port > 65535 {
		return 0, invalid("port %q: must be within 1..65535", s)
	}
	return port, nil
}

func (h *Handler) serveDial(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	port, err := parsePort(q.str("port"))
	if err != nil {
		q.fail(err)
	}
	if q.err != nil {
		return q.err
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), protocolTCP) {
		return invalid("this is a tunnel: ask for an upgrade to %s", protocolTCP)
	}
	ctx, done, err := h.stream(w, r)
	if err != nil {
		return err
	}
	defer done()
	sb, err := h.sandbox(r)
	if err != nil {
		return err
	}
	inside, err := atoll.Dial(ctx, sb, port)
	if err != nil {
		return err
	}
	defer inside.Close()
	outside, err := takeOver(w)
	if err != nil {
		return err
	}
	defer outside.Close()
	defer context.AfterFunc(ctx, func() {
		inside.Close()
		outside.Close()
	})()
	return answered(join(inside, outside))
}

// takeOver answers 101 and returns the connection.
func takeOver(w http.ResponseWriter) (*wire, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, atoll.E("dial", "", atoll.ErrInternal, err)
	}
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocolTCP+"\r\n\r\n")
	if err != nil {
		conn.Close()
		return nil, answered(err)
	}
	return &wire{Conn: conn, br: buffered.Reader}, nil
}

// join copies both ways until both sides have closed their halves, or one
// fails.
func join(a, b net.Conn) error {
	var other error
	var wg sync.WaitGroup
	wg.Go(func() { other = pipe(a, b) })
	err := pipe(b, a)
	wg.Wait()
	return errors.Join(err, other)
}

// pipe copies src to dst, and its end as well.
func pipe(dst, src net.Conn) error {
	_, err := copyBuffer(dst, src)
	cw, ok := dst.(interface{ CloseWrite() error })
	if err == nil && ok {
		if err = cw.CloseWrite(); err == nil {
			return nil
		}
	}
	dst.Close() // which also ends the other direction
	src.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Dial implements atoll.Dialer.
func (s *sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	q := call{op: "dial", id: s.id, path: s.path + "/dial", query: url.Values{"port": {strconv.Itoa(port)}}}
	return s.c.tunnel(ctx, q)
}

func (c *Client) tunnel(ctx context.Context, q call) (net.Conn, error) {
	w, err := c.upgrade(ctx, q, protocolTCP)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// A target is where a proxied request goes.
type target struct {
	sb   atoll.Sandbox
	port int
	path string // as it was sent, escapes and all
}

type targetKey struct{}

// proxied takes apart the path of a request to a port. It does what the mux
// would do, which redirects a path to its shortest form: what is behind the
// port is for whoever answers there.
func proxied(u *url.URL) (id, port, path string, ok bool) {
	rest, ok := strings.CutPrefix(u.EscapedPath(), "/v1/sandboxes/")
	if !ok {
		return "", "", "", false
	}
	id, rest, _ = strings.Cut(rest, "/")
	word, rest, _ := strings.Cut(rest, "/")
	port, path, ok = strings.Cut(rest, "/")
	return id, port, "/" + path, ok && word == "ports"
}

func (h *Handler) serveProxy(w http.ResponseWriter, r *http.Request) error {
	id, number, path, _ := proxied(r.URL)
	port, err := parsePort(number)
	if err != nil {
		return err
	}
	sb, err := h.provider.Get(r.Context(), id)
	if err != nil {
		return err
	}
	ctx, done, err := h.stream(w, r)
	if err != nil {
		return err
	}
	defer done()
	// An answer may begin before the end of the request has been seen, and would be
	// broken off. What cannot do this (HTTP/2) needs no leave to.
	_ = http.NewResponseController(w).EnableFullDuplex()
	h.proxy.ServeHTTP(w, r.WithContext(context.WithValue(ctx, targetKey{}, target{sb, port, path})))
	return nil
}

// newPortProxy returns the proxy to ports inside. Its connections are used
// once: they are cheap, and none outlives its sandbox.
func newPortProxy(h *Handler) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				to := ctx.Value(targetKey{}).(target)
				return atoll.Dial(ctx, to.sb, to.port)
			},
			DisableKeepAlives:  true,
			DisableCompression: true,
		},
		Rewrite:        h.rewrite,
		ModifyResponse: rebase,
		FlushInterval:  -1, // what comes goes on at once
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if atoll.KindOf(err) == atoll.ErrInternal { // no provider said so: what answers inside speaks no HTTP, or hung up
				err = statusError{atoll.E("proxy", "", atoll.ErrUnavailable, err), http.StatusBadGateway}
			}
			writeError(w, RequestID(r.Context()), err)
		},
		ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}
}

// prefix is the part of the path that names the port.
func (to target) prefix() string {
	return "/v1/sandboxes/" + to.sb.ID() + "/ports/" + strconv.Itoa(to.port)
}

// rewrite turns a request into one to the port.
func (h *Handler) rewrite(pr *httputil.ProxyRequest) {
	to := pr.In.Context().Value(targetKey{}).(target)
	pr.SetXForwarded()
	out := pr.Out
	out.Header.Set("X-Forwarded-Prefix", to.prefix())
	if h.verify != nil {
		out.Header.Del("Authorization") // it holds the token of this server
	}
	out.URL.Scheme, out.URL.Host = "http", pr.In.Host
	out.URL.RawQuery, out.URL.ForceQuery = pr.In.URL.RawQuery, pr.In.URL.ForceQuery // sent as it came, sense or not
	out.URL.RawPath = to.path
	if path, err := url.PathUnescape(to.path); err == nil {
		out.URL.Path = path
	}
}

// rebase keeps a redirect to a path on the same port.
func rebase(resp *http.Response) error {
	location := resp.Header.Get("Location")
	if strings.HasPrefix(location, "/") && !strings.HasPrefix(location, "//") {
		to := resp.Request.Context().Value(targetKey{}).(target)
		resp.Header.Set("Location", to.prefix()+location)
	}
	return nil
}

var _ atoll.Dialer = (*sandbox)(nil)
