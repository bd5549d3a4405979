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

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/egress"
)

// An exchange is one request with its response.
type exchange struct {
	*conn
	policy   *egress.Rules // when the request began
	request  *egress.Request
	event    atoll.NetworkEvent
	host     string // of the request, without port
	port     int
	rules    []*egress.Rule
	redirect *url.URL // where the request goes instead; nil for nowhere

	releaseBody func() // gives back the room of a body in memory; nil if it has none

	began   time.Time
	traffic traffic

	headers map[string]string // that rules set
	query   map[string]string // parameters that rules set
	swaps   []swap            // what of the request has become what, to change the response back
	redact  bool              // put placeholders into the body of the response
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

// A refusal has the reason for which a request does not pass.
type refusal struct {
	status int
	reason string        // for the user
	told   string        // for the client; "" for the reason. Clients take the names of headers and secrets for errors of their own
	opens  string        // the entry of Allow that would open it; "" if none would
	wait   time.Duration // until the client may try again; 0 for never
}

func (r *refusal) Error() string { return r.reason }

func refuseWith(format string, args ...any) *refusal {
	return &refusal{status: http.StatusForbidden, reason: fmt.Sprintf(format, args...)}
}

// refuseExchange reports a refusal, and tells the client.
func (x *exchange) refuseExchange(w http.ResponseWriter, r *http.Request, why *refusal) {
	x.event.Verdict, x.event.Reason, x.event.Opens, x.event.Status = atoll.NetworkRefused, why.reason, why.opens, why.status
	if why.wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(why.wait/time.Second)+1))
	}
	text := strings.TrimPrefix(x.host+": "+cmp.Or(why.told, why.reason), ": ")
	if why.opens != "" && x.gateway.opts.Advise != nil {
		text += ". " + x.gateway.opts.Advise(why.opens)
	}
	refuseRequest(w, r, why.status, text)
}

// prepareRequest decides about a request, and prepares what changes in it.
func (x *exchange) prepareRequest(r *http.Request) *refusal {
	host, why := x.checkTarget(r)
	if x.host = host; why != nil {
		return why
	}
	if r.Method == http.MethodTrace && len(x.policy.Secrets()) > 0 {
		return refuseWith("the server would return all that it gets: TRACE does not pass")
	}
	q := egress.NewRequest(r, host, x.port)
	rule, reason := x.policy.CheckRequest(q)
	if x.event.Rule = rule; reason != "" {
		why := refuseWith("%s", reason)
		if strings.HasSuffix(reason, egress.NotAllowed) {
			why.opens = q.Entry()
		}
		return why
	}
	if !x.setRequest(q) {
		return refuseWith("the rules of the network have changed")
	}
	if x.rules, reason = x.policy.Matching(q); reason != "" {
		return refuseWith("%s", reason)
	}
	if len(x.rules) > 0 {
		x.event.Rule = x.rules[0].Match
	}
	if why := x.countRequest(); why != nil {
		return why
	}
	for _, rule := range x.rules {
		x.redact = x.redact || rule.Redact
		if x.redirect == nil {
			x.redirect = rule.Target
		}
	}
	if x.redirect != nil && (q.IsOdd() || r.RequestURI == "*") {
		return refuseWith("its path could lead out of the one to which a rule redirects it")
	}
	if why := x.putSecrets(r); why != nil {
		return why
	}
	r.Body = x.limitBytes(r.Context(), r.Body)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &countedBody{r.Body, x}
	}
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

// setHeaders sets the headers that rules want, also in the place of those that servers take for the same.
func (x *exchange) setHeaders(out *http.Request) {
	if len(x.headers) == 0 {
		return
	}
	out.Trailer = nil
	for name := range out.Header {
		if _, ok := x.headers[http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))]; ok {
			delete(out.Header, name)
		}
	}
	for name, value := range x.headers {
		out.Header[name] = []string{value}
	}
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
	x.event.Status = res.StatusCode
	x.changeHeader(res.Header)
	redact := x.redact && len(x.swaps) > 0
	if res.StatusCode == http.StatusSwitchingProtocols {
		if redact {
			return refuseWith("a rule hides secrets in responses, and cannot in what follows this one")
		}
		if both, ok := res.Body.(io.ReadWriteCloser); ok {
			res.Body = &countedStream{both, x, res.Request.Context()}
		}
		return nil
	}
	if len(x.swaps) > 0 {
		res.Body = &trailedBody{res.Body, x, res}
	}
	if redact {
		if !isPlain(res.Header) || res.StatusCode == http.StatusPartialContent {
			return refuseWith("a rule hides secrets in the response, of which only a part came, or which is encoded")
		}
		res.Body = newRedacted(res.Body, x.swaps)
		res.Header.Del("Content-Length")
		res.ContentLength = -1
	}
	res.Body = x.limitBytes(res.Request.Context(), res.Body)
	return nil
}

// changeHeader puts placeholders into a header in the place of the values that a server returns.
func (x *exchange) changeHeader(header http.Header) {
	for name, values := range header {
		for _, s := range x.swaps {
			if strings.Contains(strings.ToLower(name), strings.ToLower(s.value)) {
				delete(header, name)
			}
		}
		for i := range values {
			for _, s := range x.swaps {
				values[i] = strings.ReplaceAll(values[i], s.value, s.placeholder)
				values[i] = strings.ReplaceAll(values[i], url.QueryEscape(s.value), url.QueryEscape(s.placeholder))
			}
		}
	}
}

// isPlain reports whether a body is not encoded.
func isPlain(header http.Header) bool {
	return !slices.ContainsFunc(header["Content-Encoding"], func(v string) bool { return !strings.EqualFold(strings.TrimSpace(v), "identity") })
}

// A trailedBody is the body of a response whose trailers have placeholders in the place of values.
type trailedBody struct {
	io.ReadCloser
	x   *exchange
	res *http.Response
}

func (b *trailedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.x.changeHeader(b.res.Trailer)
	}
	return n, err
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
	if problem := waitBytes(s.ctx, s.limit, n); problem != nil {
		return n, problem
	}
	return n, err
}

// waitBytes waits until a limit has room for n bytes.
func waitBytes(ctx context.Context, limit *rate.Limiter, n int) error {
	for n > 0 {
		some := min(n, limit.Burst())
		if err := limit.WaitN(ctx, some); err != nil {
			return err
		}
		n -= some
	}
	return nil
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
		TLSClientConfig:     &tls.Config{RootCAs: g.opts.Roots},
		TLSHandshakeTimeout: handshakeTimeout,

		MaxResponseHeaderBytes: maxResponseHeader,
		DisableCompression:     true,
		ExpectContinueTimeout:  continueTimeout,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        5 * time.Second, // a server must not close a connection that a request is about to use
	}
}
