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

// A guardTransport carries the requests of one pull. Registries are hostile: a
// redirect, or the address of a token server, can make us send requests to anything
// that this machine can reach. A guardTransport contacts hosts that the user has not
// named over TLS only, and never on this machine or its link. It allows private
// networks: a registry in one may well keep its layers, or its tokens, on another host
// there.
type guardTransport struct {
	store *Store
	host  string // of the registry that the image's name begins with
}

// RoundTrip implements http.RoundTripper.
func (g guardTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := g.checkURL(req.URL); err != nil {
		return nil, err
	}
	via := g.store.outward
	if g.isNamedHost(req.URL) {
		via = g.store.transport
	}
	resp, err := via.RoundTrip(req)
	if err != nil || resp.StatusCode/100 != 3 {
		return resp, err
	}
	// The check when the client follows the redirect would come too late for a clear error.
	if to, err := resp.Location(); err == nil {
		if err := g.checkURL(to); err != nil {
			resp.Body.Close()
			return nil, err
		}
	}
	return resp, nil
}

// checkURL refuses a URL to which no request may go, as far as its host and scheme say.
func (g guardTransport) checkURL(u *url.URL) error {
	named := g.isNamedHost(u)
	if !named && (isLocal(u.Host) || isInternalHost(u.Host)) {
		return &internalAddrError{u.Host}
	}
	if u.Scheme != "https" && !(u.Scheme == "http" && named && g.store.allowsPlainHTTP(u.Host)) {
		return errPlainHTTP
	}
	return nil
}

// isNamedHost reports whether the user has named the host of u: it is the image's
// registry, or in Options.Insecure. A registry on this machine may refer to other
// servers there.
func (g guardTransport) isNamedHost(u *url.URL) bool {
	return withPort(u.Host, u.Scheme) == withPort(g.host, u.Scheme) ||
		g.store.isInsecure(u.Host) || isLocal(u.Host) && isLocal(g.host)
}

// withPort returns a host with its port, by default that of the scheme.
func withPort(host, scheme string) string {
	u := url.URL{Host: host}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// allowsPlainHTTP reports whether host may be contacted without TLS.
func (s *Store) allowsPlainHTTP(host string) bool { return s.isInsecure(host) || isLocal(host) }

func (s *Store) isInsecure(host string) bool {
	return slices.ContainsFunc(s.opts.Insecure, func(listed string) bool {
		return strings.EqualFold(listed, host) || strings.EqualFold(listed, withoutPort(host))
	})
}

// isLocal reports whether host is localhost or a loopback address.
func isLocal(host string) bool {
	ip := net.ParseIP(withoutPort(host))
	return withoutPort(host) == "localhost" || ip != nil && ip.IsLoopback()
}

// isInternalHost reports whether host is an internal address, see isInternalAddr.
func isInternalHost(host string) bool {
	addr, err := netip.ParseAddr(withoutPort(host))
	return err == nil && isInternalAddr(addr)
}

// withoutPort returns a host without its port.
func withoutPort(host string) string {
	u := url.URL{Host: host}
	return u.Hostname()
}

// newTransport returns the transport for hosts that the user has named.
func newTransport() *http.Transport {
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = time.Minute
	return t
}

// newExternalTransport returns the transport for all other hosts. It checks the
// addresses of a host when it dials them. It has connections of its own, so that it
// does not use one that only the transport for named hosts may open.
func newExternalTransport() *http.Transport {
	t := newTransport()
	t.Proxy = nil
	t.DialContext = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Control: refuseInternalAddr}).DialContext
	return t
}

// An externalTransport sends requests to hosts that the user has not named. If a proxy
// is set for a host, it sends the request there, and the proxy resolves the name; else
// it sends it directly.
type externalTransport struct {
	proxy           func(*http.Request) (*url.URL, error)
	proxied, direct http.RoundTripper
}

func (o externalTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if proxy, err := o.proxy(req); err != nil || proxy != nil {
		return o.proxied.RoundTrip(req)
	}
	return o.direct.RoundTrip(req)
}

// refuseInternalAddr is a net.Dialer.Control that refuses internal addresses.
func refuseInternalAddr(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || isInternalAddr(ap.Addr()) {
		return &internalAddrError{address}
	}
	return nil
}

// An internalAddrError says that a registry refers to an internal address.
type internalAddrError struct{ host string }

func (e *internalAddrError) Error() string {
	return fmt.Sprintf("refused to follow the registry to %s, an address of this machine, its link or its metadata service", e.host)
}

func isInternalAddrError(err error) bool {
	var e *internalAddrError
	return errors.As(err, &e)
}

// isInternalAddr reports whether addr is on this machine or its link, or belongs to a
// metadata service, which gives credentials to any program on this machine.
func isInternalAddr(addr netip.Addr) bool {
	addr = reservedip.Canonical(addr)
	return addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified() ||
		thisNetwork.Contains(addr) || slices.Contains(reservedip.Metadata(), addr)
}

var thisNetwork = netip.MustParsePrefix("0.0.0.0/8") // Linux routes it to this machine
