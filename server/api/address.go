package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// An endpoint is one server that a Client can send requests to.
type endpoint struct {
	base         string // "http://host"
	host         string // host:port of base; the key of its connections in http.Transport
	dial         func(ctx context.Context) (net.Conn, error)
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
		c.endpoints = []*endpoint{{base: "http://atoll", host: "atoll:80", dial: c.opts.Dial}}
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

// SplitURLs splits a ClientOptions.URL into the URLs of the servers. It splits only at commas that
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
		return &endpoint{base: "http://" + host, host: host + ":80", dial: func(ctx context.Context) (net.Conn, error) { return dialUnix(ctx, u.Path) }}, nil
	case fit && u.Scheme == "http" && u.Host != "":
		return &endpoint{base: strings.TrimSuffix(text, "/"), host: hostPort(u, "80"), dial: newDialer(u)}, nil
	case fit && u.Scheme == "https" && u.Host != "":
		return &endpoint{base: strings.TrimSuffix(text, "/"), host: hostPort(u, "443"), dial: newDialer(u)}, nil
	case strings.Contains(text, "@"): // the URL may contain a password, so the error omits it
		return nil, bad("server URL: write it like unix:///path or http://host:port, without user or password: the token goes into ClientOptions.Token")
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
func (a *endpoint) backOff() { a.backOffUntil.Store(time.Now().Add(backOffTime).UnixNano()) }

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
	if err == nil || ctx.Err() != nil {
		return conn, err
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

// A dialError means that no connection was made, so nothing was sent.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

// A brokenConnError means that an established connection broke.
type brokenConnError struct{ error }

func (e brokenConnError) Unwrap() error { return e.error }

// An outcome tells how much of a failed request the server may have done.
type outcome int

const (
	outcomeFinal   outcome = iota // the server answered, or the caller gave up
	outcomeUndone                 // the server did nothing
	outcomeUnknown                // the server did all, some or nothing of it
)

// outcomeOf returns the outcome of a request that failed with err.
func outcomeOf(err error) outcome {
	if err == nil {
		return outcomeFinal
	}
	if _, ok := errors.AsType[dialError](err); ok {
		return outcomeUndone
	}
	if remote, ok := errors.AsType[*remoteError](err); ok {
		switch {
		case remote.Closing == closingUndone:
			return outcomeUndone
		case remote.Closing != "" || remote.Proxy:
			return outcomeUnknown
		}
		return outcomeFinal
	}
	if _, ok := errors.AsType[brokenConnError](err); ok && !errors.Is(err, errClientClosed) {
		return outcomeUnknown
	}
	return outcomeFinal
}

// A retrier paces the attempts at one request or stream. It is not safe for concurrent use.
type retrier struct {
	c        *Client
	attempts int
	deadline time.Time // when retrying ends; zero before the first failure
	pause    time.Duration
}

const (
	minRetryPause = 50 * time.Millisecond
	maxRetryPause = 2 * time.Second
)

// allowRetry reports whether a request that failed with err should be sent again. It blocks for the
// pause before the next attempt. idempotent reports whether the request may be done twice.
func (t *retrier) allowRetry(ctx context.Context, err error, idempotent bool) bool {
	t.attempts++
	switch f := outcomeOf(err); {
	case f == outcomeFinal, f == outcomeUnknown && !idempotent:
		return false
	case t.attempts < len(t.c.endpoints) && ctx.Err() == nil:
		return true // at once, since the next attempt goes to another server
	}
	return t.waitPause(ctx)
}

// startClock starts the client's patience and reports whether it had not started yet.
func (t *retrier) startClock() bool {
	if !t.deadline.IsZero() {
		return false
	}
	t.deadline, t.pause = time.Now().Add(t.c.opts.Patience), minRetryPause
	return true
}

// waitPause blocks for a pause that doubles with each call. It returns false if
// ClientOptions.Patience is used up, or if ctx or the client has ended.
func (t *retrier) waitPause(ctx context.Context) bool {
	t.startClock()
	if !time.Now().Add(t.pause).Before(t.deadline) {
		return false
	}
	select {
	case <-time.After(t.pause):
	case <-ctx.Done():
		return false
	case <-t.c.ctx.Done():
		return false
	}
	t.pause = min(2*t.pause, maxRetryPause)
	return true
}
