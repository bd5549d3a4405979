// Package gateway looks at what the connections of a sandbox say, so that an address that is open for one name is open for no other
// name: servers of many names share addresses. It reads the server name of TLS, which it passes on untouched, and the host of each
// request of plain HTTP, which it passes on request by request.
//
// For hosts that rules name, it also ends TLS, with certificates of an [Authority] that only the sandbox trusts. Then it checks each
// request against the rules, and puts the values of secrets in the place of the placeholders that the sandbox has.
package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"

	"github.com/seed46cd37a8/atoll/internal/egress"
)

// Options configure a Gateway. Refused and Dial are required. Its functions are called from many goroutines at once.
type Options struct {
	// Refused is called for each request and connection that is refused. It must not block.
	Refused func(host string, dst netip.AddrPort, reason string)
	// Dial connects to dst.
	Dial func(ctx context.Context, dst netip.AddrPort) (net.Conn, error)
	// Log gets failures at level Debug. Nil means none.
	Log *slog.Logger

	// Rules has the rules of the sandbox. Nil means none; otherwise the options below are required.
	Rules *egress.Rules
	// Authority issues the certificates for connections of TLS in which the Gateway reads the requests.
	Authority *Authority
	// Value returns the value of the secret with that name, or says why there is none.
	Value func(name string) (string, error)
	// DialHost connects to a host and port to which a rule redirects requests.
	DialHost func(ctx context.Context, address string) (net.Conn, error)
	// Roots are the authorities of the servers. Nil means those of this machine.
	Roots *x509.CertPool
}

// A Target describes the address of a connection.
type Target struct {
	Addr netip.AddrPort
	// CheckHost returns why a request for host must not go there, "" if it may. The host is in lower case and has no port.
	CheckHost func(host string) (reason string)
}

// A Gateway serves the connections of one sandbox. Its methods may be called at once from many goroutines.
type Gateway struct {
	opts  Options
	http1 *http.Server
	http2 *http.Server
	proxy *httputil.ReverseProxy

	redirects *http.Transport        // to where rules redirect requests
	sessions  tls.ClientSessionCache // of servers
}

// New returns a Gateway, which runs nothing.
func New(opts Options) *Gateway {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Rules == nil {
		opts.Rules = new(egress.Rules)
	}
	g := &Gateway{opts: opts, sessions: tls.NewLRUClientSessionCache(64)}
	g.proxy = g.newProxy()
	g.http1, g.http2 = g.newServer(false), g.newServer(true)
	g.redirects = g.newRedirects()
	return g
}

// Close closes idle connections to which rules redirect requests. The others end with the connections of their clients.
func (g *Gateway) Close() { g.redirects.CloseIdleConnections() }
