package client

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// An endpoint is one server that a Client can send requests to.
type endpoint struct {
	base         string // "http://host"
	host         string // host:port of base; the key of its connections in http.Transport
	dial         func(ctx context.Context) (net.Conn, error)
	local        bool         // a socket of this machine, without a proxy
	backOffUntil atomic.Int64 // Unix time in nanoseconds until which other endpoints are preferred
}

// backOffTime is the time for which other endpoints are preferred after one failed to answer.
const backOffTime = 5 * time.Second

// parseEndpoints sets c.endpoints and c.serverName from the options.
func (c *Client) parseEndpoints() error {
	c.serverName = c.opts.URL
	switch {
	case c.opts.URL != "":
	case c.opts.Dial == nil:
		return atoll.Errorf("connect", "", atoll.ErrInvalid, "no server URL given: write it like unix:///path or http://host:port")
	default:
		c.serverName = "the other end"
		c.endpoints = []*endpoint{{base: "http://atoll", host: "atoll:80", dial: c.opts.Dial, local: true}}
		return nil
	}
	for i, one := range SplitURLs(c.opts.URL) {
		a, err := newEndpoint(one, i)
		if err != nil {
			return err
		}
		if c.opts.Dial != nil {
			a.dial = c.opts.Dial
		}
		c.endpoints = append(c.endpoints, a)
	}
	return nil
}

// SplitURLs splits a Options.URL into the URLs of the servers. It splits only at commas that
// a URL follows, because a path may contain other commas.
func SplitURLs(text string) (all []string) {
	for part := range strings.SplitSeq(text, ",") {
		if len(all) > 0 && !strings.Contains(part, "://") {
			all[len(all)-1] += "," + part
			continue
		}
		all = append(all, part)
	}
	return all
}

// newEndpoint parses the URL of the i-th server.
func newEndpoint(text string, i int) (*endpoint, error) {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("connect", "", atoll.ErrInvalid, format, args...)
	}
	u, err := url.Parse(text)
	fit := err == nil && u.User == nil
	switch {
	case fit && u.Scheme == "unix" && u.Host == "" && u.Path != "":
		host := "atoll"
		if i > 0 { // connections are pooled by host name, which a socket path cannot be
			host = fmt.Sprintf("atoll-%d", i+1)
		}
		return &endpoint{base: "http://" + host, host: host + ":80", dial: func(ctx context.Context) (net.Conn, error) { return wire.DialUnix(ctx, u.Path) }, local: true}, nil
	case fit && u.Scheme == "http" && u.Host != "":
		return &endpoint{base: strings.TrimSuffix(text, "/"), host: hostPort(u, "80"), dial: newDialer(u)}, nil
	case fit && u.Scheme == "https" && u.Host != "":
		return &endpoint{base: strings.TrimSuffix(text, "/"), host: hostPort(u, "443"), dial: newDialer(u)}, nil
	case strings.Contains(text, "@"): // the URL may contain a password, so the error omits it
		return nil, bad("server URL: write it like unix:///path or http://host:port, without user or password: the token goes into Options.Token")
	case err != nil:
		return nil, bad("server %w", err)
	}
	return nil, bad("server URL %q: write it like unix:///path or http://host:port", text)
}

// pickEndpoint returns the first endpoint that is not backed off, or the one whose back-off ends
// first.
func (c *Client) pickEndpoint() *endpoint {
	now, best := time.Now().UnixNano(), c.endpoints[0]
	for _, a := range c.endpoints {
		until := a.backOffUntil.Load()
		if until <= now {
			return a
		}
		if until < best.backOffUntil.Load() {
			best = a
		}
	}
	return best
}

// backOff makes the client prefer other endpoints for backOffTime.
func (e *endpoint) backOff() { e.backOffUntil.Store(time.Now().Add(backOffTime).UnixNano()) }

// endpointByHost returns the endpoint with the given host:port, or the first endpoint.
func (c *Client) endpointByHost(host string) *endpoint {
	for _, a := range c.endpoints {
		if a.host == host {
			return a
		}
	}
	return c.endpoints[0]
}

// endpointByURL returns the endpoint that a request to u goes to.
func (c *Client) endpointByURL(u *url.URL) *endpoint {
	port := "80"
	if u.Scheme == "https" {
		port = "443"
	}
	return c.endpointByHost(hostPort(u, port))
}

// dialEndpoint connects to a server. Its error is a dialError unless ctx has ended.
func (c *Client) dialEndpoint(ctx context.Context, a *endpoint) (net.Conn, error) {
	conn, err := a.dial(ctx)
	if err == nil {
		return conn, nil
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done() // a net.Dialer may see the deadline before ctx does
	}
	if ctx.Err() != nil {
		return nil, err
	}
	a.backOff()
	return nil, dialError{err}
}

// backOffIfClosing returns err, the error in the response, unchanged. If the server is closing, the
// client then prefers other endpoints.
func (c *Client) backOffIfClosing(resp *http.Response, err error) error {
	if outcomeOf(err) == outcomeUndone {
		c.endpointByURL(resp.Request.URL).backOff()
	}
	return err
}
