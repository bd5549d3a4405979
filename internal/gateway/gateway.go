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
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/egress"
)

// Options configure a Gateway. Report and Dial are required. Its functions are called from many goroutines at once.
type Options struct {
	// Report is called for each request that has ended, and for each request and connection that is refused, without a number and a
	// time. Its host and path are as the client wrote them. It must not block.
	Report func(atoll.NetworkEvent)
	// Advise returns a sentence for the client about how to open an entry of Allow. Nil means none.
	Advise func(entry string) string
	// Dial connects to dst.
	Dial func(ctx context.Context, dst netip.AddrPort) (net.Conn, error)
	// Log gets failures at level Debug. Nil means none.
	Log *slog.Logger

	// Rules has the rules of the sandbox, until SetRules. Nil means none; otherwise the options below are required.
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
	// CheckHost returns why a request for host must not go there, "" if it may, and the entry of Allow that would open the host, "" if none
	// would. The host is in lower case and has no port.
	CheckHost func(host string) (reason, opens string)
	// StillAllowed reports whether requests for a host that CheckHost let pass earlier may go on. Nil means that they may.
	StillAllowed func(host string) bool
}

// maxBodies is the number of bodies, of at most atoll.MaxSecretBody bytes, in which the gateway looks for placeholders at once.
const maxBodies = 32

// A Gateway serves the connections of one sandbox. Its methods may be called at once from many goroutines.
type Gateway struct {
	opts  Options
	rules atomic.Pointer[egress.Rules]
	http1 *http.Server
	http2 *http.Server
	proxy *httputil.ReverseProxy

	redirects *http.Transport        // to where rules redirect requests
	sessions  tls.ClientSessionCache // of servers
	bodies    *semaphore.Weighted    // that are in memory at once

	mu    sync.Mutex
	conns map[*conn]struct{} // that are open; guarded by mu
}

// New returns a Gateway, which runs nothing.
func New(opts Options) *Gateway {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Rules == nil {
		opts.Rules = new(egress.Rules)
	}
	g := &Gateway{opts: opts, sessions: tls.NewLRUClientSessionCache(64), conns: map[*conn]struct{}{}, bodies: semaphore.NewWeighted(maxBodies)}
	g.rules.Store(opts.Rules)
	g.proxy = g.newProxy()
	g.http1, g.http2 = g.newServer(false), g.newServer(true)
	g.redirects = g.newRedirects()
	return g
}

// Close closes idle connections to which rules redirect requests. The others end with the connections of their clients.
func (g *Gateway) Close() { g.redirects.CloseIdleConnections() }

// addConn adds an open connection, until the caller calls remove.
func (g *Gateway) addConn(c *conn) (remove func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns[c] = struct{}{}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.conns, c)
	}
}

// SetRules replaces the rules, and resets the connections with a host or a request that they, or the target of the connection, refuse now.
// CheckHost of the targets must decide by the new rules already.
func (g *Gateway) SetRules(rules *egress.Rules) {
	g.rules.Store(rules)
	g.mu.Lock()
	all := make([]*conn, 0, len(g.conns))
	for c := range g.conns {
		all = append(all, c)
	}
	g.mu.Unlock()
	for _, c := range all {
		if c.isRefused() {
			c.abortAll()
		}
	}
}
