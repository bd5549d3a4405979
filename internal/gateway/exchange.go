package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed46cd37a8/atoll/internal/egress"
)

// An exchange is one request with its response.
type exchange struct {
	*conn
	host     string // of the request, without port
	port     int
	rules    []*egress.Rule
	redirect *url.URL // where the request goes instead; nil for nowhere

	query  map[string]string // parameters that rules set
	swaps  []swap            // what of the request has become what, to change the response back
	redact bool              // put placeholders into the body of the response
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

// A refusal has the reason for which a request does not pass.
type refusal struct {
	status int
	reason string        // for the user
	told   string        // for the client; "" for the reason. Clients take the names of headers and secrets for errors of their own
	wait   time.Duration // until the client may try again; 0 for never
}

func (r *refusal) Error() string { return r.reason }

func refuseWith(format string, args ...any) *refusal {
	return &refusal{status: http.StatusForbidden, reason: fmt.Sprintf(format, args...)}
}

// refuseExchange reports a refusal, and tells the client.
func (x *exchange) refuseExchange(w http.ResponseWriter, r *http.Request, why *refusal) {
	x.gateway.opts.Refused(x.host, x.to.Addr, why.reason)
	if why.wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(why.wait/time.Second)+1))
	}
	refuseRequest(w, r, why.status, strings.TrimPrefix(x.host+": "+cmp.Or(why.told, why.reason), ": "))
}

// prepareRequest decides about a request, and prepares what changes in it.
func (x *exchange) prepareRequest(r *http.Request) *refusal {
	host, reason := x.checkTarget(r)
	if x.host = host; reason != "" {
		return refuseWith("%s", reason)
	}
	if r.Method == http.MethodTrace && len(x.gateway.opts.Rules.Secrets()) > 0 {
		return refuseWith("the server would return all that it gets: TRACE does not pass")
	}
	q := egress.NewRequest(r, host, x.port)
	if reason := x.gateway.opts.Rules.CheckRequest(q); reason != "" {
		return refuseWith("%s", reason)
	}
	x.rules = x.gateway.opts.Rules.Matching(q)
	if why := x.countRequest(); why != nil {
		return why
	}
	for _, rule := range x.rules {
		x.redact = x.redact || rule.Redact
		if x.redirect == nil {
			x.redirect = rule.Target
		}
	}
	if why := x.putSecrets(r); why != nil {
		return why
	}
	r.Body = x.limitBytes(r.Context(), r.Body)
	return nil
}

// countRequest counts the request towards the limits.
func (x *exchange) countRequest() *refusal {
	for _, rule := range x.rules {
		if rule.Requests == nil {
			continue
		}
		now := time.Now()
		if wait := rule.Requests.ReserveN(now, 1); wait.DelayFrom(now) > 0 {
			defer wait.CancelAt(now)
			why := refuseWith("a rule allows %d requests per minute", rule.RequestsPerMinute)
			why.status, why.wait = http.StatusTooManyRequests, wait.DelayFrom(now)
			return why
		}
	}
	return nil
}

// goesTo returns the host and port that get the request, and whether by TLS.
func (x *exchange) goesTo() (host string, port int, secure bool) {
	if x.redirect == nil {
		return x.host, x.port, x.serverName != ""
	}
	port = 80
	if secure = x.redirect.Scheme == "https"; secure {
		port = 443
	}
	if p, err := strconv.Atoi(x.redirect.Port()); err == nil {
		port = p
	}
	return strings.ToLower(x.redirect.Hostname()), port, secure
}

// changeURL changes where a request goes that goes out.
func (x *exchange) changeURL(out *http.Request) {
	for _, rule := range x.rules {
		for name := range rule.SetQuery {
			out.URL.RawQuery = setParameter(out.URL.RawQuery, name, x.query[name])
		}
	}
	if x.redirect == nil {
		return
	}
	out.URL.Scheme, out.URL.Host, out.Host = x.redirect.Scheme, x.redirect.Host, x.redirect.Host
	base := strings.TrimSuffix(x.redirect.EscapedPath(), "/")
	if out.URL.Opaque != "" { // the path as the client wrote it
		out.URL.Opaque = base + out.URL.Opaque
		return
	}
	out.URL.Path, out.URL.RawPath = strings.TrimSuffix(x.redirect.Path, "/")+out.URL.Path, ""
}

// setParameter returns a query in which the parameter has only that value. The others are as they were.
func setParameter(query, name, value string) string {
	parts := strings.FieldsFunc(query, func(r rune) bool { return r == '&' })
	parts = slices.DeleteFunc(parts, func(part string) bool {
		key, _, _ := strings.Cut(part, "=")
		key, err := url.QueryUnescape(key)
		return err == nil && key == name
	})
	return strings.Join(append(parts, url.QueryEscape(name)+"="+url.QueryEscape(value)), "&")
}

// changeResponse puts placeholders into a response in the place of the values that a server returns.
func (x *exchange) changeResponse(res *http.Response) error {
	for _, values := range res.Header {
		for i, v := range values {
			for _, s := range x.swaps {
				v = strings.ReplaceAll(v, s.value, s.placeholder)
			}
			values[i] = v
		}
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	if x.redact && len(x.swaps) > 0 {
		if encoding := res.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
			return refuseWith("a rule hides secrets in the response, which is encoded as %q", encoding)
		}
		res.Body = &redacted{ReadCloser: res.Body, swaps: x.swaps}
		res.Header.Del("Content-Length")
		res.ContentLength = -1
	}
	res.Body = x.limitBytes(res.Request.Context(), res.Body)
	return nil
}

// limitBytes returns a body that waits as the rules want it.
func (x *exchange) limitBytes(ctx context.Context, body io.ReadCloser) io.ReadCloser {
	for _, rule := range x.rules {
		if rule.Bytes != nil && body != nil && body != http.NoBody {
			body = &slowed{body, ctx, rule.Bytes}
		}
	}
	return body
}

// A slowed is a body whose bytes count towards a limit.
type slowed struct {
	io.ReadCloser
	ctx   context.Context
	limit *rate.Limiter
}

func (s *slowed) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p[:min(len(p), s.limit.Burst())])
	if n > 0 {
		if problem := s.limit.WaitN(s.ctx, n); problem != nil {
			return n, problem
		}
	}
	return n, err
}

// newRedirects returns the transport for requests that rules redirect.
func (g *Gateway) newRedirects() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			if g.opts.DialHost == nil {
				return nil, errors.New("there are no redirects")
			}
			return g.opts.DialHost(ctx, address)
		},
		TLSClientConfig:       &tls.Config{RootCAs: g.opts.Roots},
		TLSHandshakeTimeout:   handshakeTimeout,
		DisableCompression:    true,
		ExpectContinueTimeout: continueTimeout,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   8,
		IdleConnTimeout:       5 * time.Second, // a server must not close a connection that a request is about to use
	}
}
