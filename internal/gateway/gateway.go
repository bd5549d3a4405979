// Package gateway looks at what the connections of a sandbox say, so that an address that is open for one name is open for no other
// name: servers of many names share addresses. It reads the server name of TLS, which it passes on untouched, and the host of each
// request of plain HTTP, which it passes on request by request.
package gateway

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
)

// Options configure a Gateway. All but Log are required. Its functions are called from many goroutines at once.
type Options struct {
	// CheckHost returns why a request for host must not go to dst, "" if it may. The host is in lower case and has no port.
	CheckHost func(host string, dst netip.AddrPort) (reason string)
	// Refused is called for each request that is refused. It must not block.
	Refused func(host string, dst netip.AddrPort, reason string)
	// Dial connects to dst.
	Dial func(ctx context.Context, dst netip.AddrPort) (net.Conn, error)
	// Log gets failures at level Debug. Nil means none.
	Log *slog.Logger
}

// A Gateway serves the connections of one sandbox. Its methods may be called at once from many goroutines.
type Gateway struct {
	opts  Options
	http1 *http.Server
	http2 *http.Server
	proxy *httputil.ReverseProxy
}

// New returns a Gateway, which runs nothing.
func New(opts Options) *Gateway {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	g := &Gateway{opts: opts}
	g.proxy = g.newProxy()
	g.http1, g.http2 = g.newServer(false), g.newServer(true)
	return g
}
