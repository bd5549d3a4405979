//go:build linux

package image

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/seed46cd37a8/atoll/internal/reservedip"
)

// A guard carries the requests of one pull. Registries are hostile: a redirect,
// or the address of a token server, can make us ask for anything that this
// machine can reach. Whom the user has not named is asked over TLS only, and
// never on this machine or its link. Private networks stay open: a registry in
// one may well keep its layers, or its tokens, on another host there.
type guard struct {
	store *Store
	host  string // of the registry that the image's name begins with
}

// RoundTrip implements http.RoundTripper.
func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := g.check(req.URL); err != nil {
		return nil, err
	}
	via := g.store.outward
	if g.named(req.URL) {
		via = g.store.transport
	}
	resp, err := via.RoundTrip(req)
	if err != nil || resp.StatusCode/100 != 3 {
		return resp, err
	}
	// It would be checked when it is followed: at once we know what is wrong.
	if to, err := resp.Location(); err == nil {
		if err := g.check(to); err != nil {
			resp.Body.Close()
			return nil, err
		}
	}
	return resp, nil
}

// check refuses what no request may be made for, as far as the address tells.
func (g guard) check(u *url.URL) error {
	named := g.named(u)
	if !named && (isLocal(u.Host) || isInward(u.Host)) {
		return &inward{u.Host}
	}
	if u.Scheme != "https" && !(u.Scheme == "http" && named && g.store.plainAllowed(u.Host)) {
		return errPlain
	}
	return nil
}

// named reports whether the user has named the host that u leads to: it is the
// image's registry, or on the list of those that need no TLS. A registry on this
// machine may name its neighbours there.
func (g guard) named(u *url.URL) bool {
	return canonical(u.Host, u.Scheme) == canonical(g.host, u.Scheme) ||
		g.store.isInsecure(u.Host) || isLocal(u.Host) && isLocal(g.host)
}

// canonical is a host with its port.
func canonical(host, scheme string) string {
	u := url.URL{Host: host}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// plainAllowed reports whether host may be spoken to without TLS.
func (s *Store) plainAllowed(host string) bool { return s.isInsecure(host) || isLocal(host) }

func (s *Store) isInsecure(host string) bool {
	return slices.ContainsFunc(s.opts.Insecure, func(listed string) bool {
		return strings.EqualFold(listed, host) || strings.EqualFold(listed, bare(host))
	})
}

// isLocal reports whether host is spelt as one on the loopback interface.
func isLocal(host string) bool {
	ip := net.ParseIP(bare(host))
	return bare(host) == "localhost" || ip != nil && ip.IsLoopback()
}

// isInward reports whether host is spelt as an address that only this machine
// knows.
func isInward(host string) bool {
	addr, err := netip.ParseAddr(bare(host))
	return err == nil && isInwardAddr(addr)
}

// bare is a host without its port.
func bare(host string) string {
	u := url.URL{Host: host}
	return u.Hostname()
}

// newTransport returns what carries requests to those whom the user has named.
func newTransport() *http.Transport {
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = time.Minute
	return t
}

// newOutward returns what carries requests to all others. It looks at the
// addresses that their names lead to, at the moment they are dialled. It has
// connections of its own, lest it uses one that only the others may make.
func newOutward() *http.Transport {
	t := newTransport()
	t.Proxy = nil
	t.DialContext = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Control: refuseInward}).DialContext
	return t
}

// outward sends requests for strangers by way of the proxy that there is for
// them, which is where their names are resolved then, else directly.
type outward struct {
	proxy           func(*http.Request) (*url.URL, error)
	proxied, direct http.RoundTripper
}

func (o outward) RoundTrip(req *http.Request) (*http.Response, error) {
	if proxy, err := o.proxy(req); err != nil || proxy != nil {
		return o.proxied.RoundTrip(req)
	}
	return o.direct.RoundTrip(req)
}

// refuseInward is the Control of a dialer.
func refuseInward(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || isInwardAddr(ap.Addr()) {
		return &inward{address}
	}
	return nil
}

// An inward is where a registry sends us that it has no business with.
type inward struct{ host string }

func (e *inward) Error() string {
	return fmt.Sprintf("it leads to %s, which is on this machine or a service for it alone: refused", e.host)
}

func isInwardError(err error) bool {
	var e *inward
	return errors.As(err, &e)
}

// isInwardAddr reports whether addr is on this machine or its link, or that of a
// metadata service, which gives credentials to anyone who asks from here.
func isInwardAddr(addr netip.Addr) bool {
	addr = reservedip.Canonical(addr)
	return addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified() ||
		thisNetwork.Contains(addr) || slices.Contains(reservedip.Metadata(), addr)
}

var thisNetwork = netip.MustParsePrefix("0.0.0.0/8") // which Linux takes for itself
