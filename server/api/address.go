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

// An address is where a server can be reached.
type address struct {
	base string // "http://host"
	host string // host:port of base, by which connections are told apart
	dial func(ctx context.Context) (net.Conn, error)
	shun atomic.Int64 // until when others are asked first: nanoseconds since 1970
}

// shunned is how long others are asked first after an address has not answered.
const shunned = 5 * time.Second

// locate works out what to dial.
func (c *Client) locate() error {
	c.where = c.opts.URL
	switch {
	case c.opts.URL != "":
	case c.opts.Dial == nil:
		return atoll.Errorf("connect", "", atoll.ErrInvalid, "no server URL given: write it like unix:///path or http://host:port")
	default:
		c.where = "the other end"
		c.addrs = []*address{{base: "http://atoll", host: "atoll:80", dial: c.opts.Dial}}
		return nil
	}
	for i, one := range SplitURLs(c.opts.URL) {
		a, err := newAddress(one, i)
		if err != nil {
			return err
		}
		if c.opts.Dial != nil {
			a.dial = c.opts.Dial
		}
		c.addrs = append(c.addrs, a)
	}
	return nil
}

// SplitURLs splits a ClientOptions.URL into those of the servers: at the commas that a URL
// follows, since a path may have others.
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

// newAddress reads the URL of a server, which is the i-th of several.
func newAddress(text string, i int) (*address, error) {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("connect", "", atoll.ErrInvalid, format, args...)
	}
	u, err := url.Parse(text)
	fit := err == nil && u.User == nil
	switch {
	case fit && u.Scheme == "unix" && u.Host == "" && u.Path != "":
		host := "atoll"
		if i > 0 { // a path is no name of a host, and connections are kept by that
			host = fmt.Sprintf("atoll-%d", i+1)
		}
		return &address{base: "http://" + host, host: host + ":80", dial: func(ctx context.Context) (net.Conn, error) { return dialUnix(ctx, u.Path) }}, nil
	case fit && u.Scheme == "http" && u.Host != "":
		return &address{base: strings.TrimSuffix(text, "/"), host: hostPort(u, "80"), dial: dialer(u)}, nil
	case fit && u.Scheme == "https" && u.Host != "":
		return &address{base: strings.TrimSuffix(text, "/"), host: hostPort(u, "443"), dial: dialer(u)}, nil
	case strings.Contains(text, "@"): // behind a password, perhaps, which is not repeated
		return nil, bad("server URL: write it like unix:///path or http://host:port, without user or password: the token goes into ClientOptions.Token")
	case err != nil:
		return nil, bad("server %w", err)
	}
	return nil, bad("server URL %q: write it like unix:///path or http://host:port", text)
}

// address is the first server that is not shunned, else the one that was shunned first.
func (c *Client) address() *address {
	now, best := time.Now().UnixNano(), c.addrs[0]
	for _, a := range c.addrs {
		until := a.shun.Load()
		if until <= now {
			return a
		}
		if until < best.shun.Load() {
			best = a
		}
	}
	return best
}

// shun has other servers asked first, if there are any.
func (a *address) avoid() { a.shun.Store(time.Now().Add(shunned).UnixNano()) }

// at is the address with that host:port.
func (c *Client) at(host string) *address {
	for _, a := range c.addrs {
		if a.host == host {
			return a
		}
	}
	return c.addrs[0]
}

// atURL is the address that a request goes to.
func (c *Client) atURL(u *url.URL) *address {
	port := "80"
	if u.Scheme == "https" {
		port = "443"
	}
	return c.at(hostPort(u, port))
}

// connect dials a server. An error is an unreachedError, unless ctx has ended.
func (c *Client) connect(ctx context.Context, a *address) (net.Conn, error) {
	conn, err := a.dial(ctx)
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	a.avoid()
	return nil, unreachedError{err}
}

// answered returns err, which a server has answered to a request, and has others asked
// first when that server is closing.
func (c *Client) answered(resp *http.Response, err error) error {
	if fateOf(err) == undone {
		c.atURL(resp.Request.URL).avoid()
	}
	return err
}

// An unreachedError is why nothing was sent.
type unreachedError struct{ error }

func (e unreachedError) Unwrap() error { return e.error }

// A brokenError is of a connection that broke off.
type brokenError struct{ error }

func (e brokenError) Unwrap() error { return e.error }

// A fate is what became of a request that failed.
type fate int

const (
	final   fate = iota // it has an answer, or its caller has given it up
	undone              // nothing of it was done
	unknown             // all, some or nothing of it was done
)

func fateOf(err error) fate {
	if err == nil {
		return final
	}
	if _, ok := errors.AsType[unreachedError](err); ok {
		return undone
	}
	if remote, ok := errors.AsType[*remoteError](err); ok {
		switch {
		case remote.closing == closingUndone:
			return undone
		case remote.closing != "" || remote.proxy:
			return unknown
		}
		return final
	}
	if _, ok := errors.AsType[brokenError](err); ok && !errors.Is(err, errClientClosed) {
		return unknown
	}
	return final
}

// A trial is one request, or one stream, that is tried again. Not safe for use by several.
type trial struct {
	c     *Client
	tries int
	until time.Time // when it is given up; zero before the first failure
	pause time.Duration
}

const (
	firstPause = 50 * time.Millisecond
	mostPause  = 2 * time.Second
)

// again reports whether a request that failed with err is to be made again, after it has
// waited for that. safe says that it may have been done.
func (t *trial) again(ctx context.Context, err error, safe bool) bool {
	t.tries++
	switch f := fateOf(err); {
	case f == final, f == unknown && !safe:
		return false
	case t.tries < len(t.c.addrs) && ctx.Err() == nil:
		return true // another server is asked
	}
	return t.wait(ctx)
}

// begin has the client's patience count from now, and reports whether it did not yet.
func (t *trial) begin() bool {
	if !t.until.IsZero() {
		return false
	}
	t.until, t.pause = time.Now().Add(t.c.opts.Patience), firstPause
	return true
}

// wait waits a while, longer each time. It reports false when ClientOptions.Patience is at
// its end, or ctx or the client has ended.
func (t *trial) wait(ctx context.Context) bool {
	t.begin()
	if !time.Now().Add(t.pause).Before(t.until) {
		return false
	}
	select {
	case <-time.After(t.pause):
	case <-ctx.Done():
		return false
	case <-t.c.ctx.Done():
		return false
	}
	t.pause = min(2*t.pause, mostPause)
	return true
}
