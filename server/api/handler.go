package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"runtime/debug"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/server/origin"
)

// Options configure a Handler. With the zero value it needs no token, which is right only behind a
// unix socket; see Serve.
type Options struct {
	// Tokens maps the accepted bearer tokens to their accounts.
	Tokens map[string]auth.Account
	// Verify verifies tokens that are not in Tokens. Its errors are of kind ErrDenied or
	// ErrUnavailable. The handler calls it again at intervals during a request with an API key, and
	// breaks the request off once the key is no longer valid.
	Verify func(ctx context.Context, token string) (auth.Account, error)

	// Origins admits web pages: their WebSockets, and with CORS their other requests. With nil, only
	// pages of the host that a request names may open WebSockets, and no page of another origin can
	// read a response.
	Origins *origin.Policy
	// Links signs and checks links to ports. With nil, there are none.
	Links *PortLinks

	// MaxBody is the largest JSON body, in bytes; 0 means DefaultMaxBody.
	MaxBody int64
	// MaxUpload is the largest file, tar stream or input, in bytes; 0 means no limit.
	MaxUpload int64

	// Log gets a line for each request at Debug, and warnings and errors that no layer sees, such
	// as a panic. nil discards them.
	Log *slog.Logger
	// Metrics serves /metrics. It may be nil.
	Metrics http.Handler
	// Docs serves /, /docs, the files below it, and /openapi.json without a token. Package openapi implements it. It may be
	// nil.
	Docs http.Handler
	// Tools serves /v1/tools. It may be nil.
	Tools Tools
	// MCP serves /mcp, with the account of the token in the request's context. The caller must
	// close it after the Handler. It may be nil.
	MCP http.Handler
	// Keys serves /v1/keys. The caller must close it after the Handler. It may be nil.
	Keys Keys
	// Audit serves /v1/audit. The caller must close it after the Handler. It may be nil.
	Audit AuditLog
	// Denied is called for each request that the handler denies without calling the provider. ctx
	// has the account, if known. It may be nil.
	Denied func(ctx context.Context, what string)
	// Conversations serves /v1/conversation and /v1/sandbox. The caller must close it after the
	// Handler. It may be nil.
	Conversations Conversations
	// Ready returns why the server is not ready for requests, for example because its store does
	// not answer. /readyz reports that the server is not ready, and the handler logs the error. The
	// handler calls Ready at most once a second and with a deadline of 5 seconds. With nil, the
	// server is ready until it closes.
	Ready func(ctx context.Context) error
	// Version is the version of this server in /v1/info.
	Version string

	// Extract returns a ctx with the trace context from the headers of a request. The default
	// stores the W3C headers in ctx, and a Client forwards them.
	Extract func(ctx context.Context, h http.Header) context.Context

	verifyEvery time.Duration // for tests: interval between calls of Verify; 0 means defaultVerifyEvery
}

// defaultVerifyEvery is the interval at which the handler verifies the key of a request in
// progress.
const defaultVerifyEvery = 10 * time.Second

// DefaultMaxBody is the default of Options.MaxBody.
const DefaultMaxBody = 4 << 20

// A Handler serves a Provider over HTTP.
type Handler struct {
	provider atoll.Provider
	opts     Options
	log      *slog.Logger
	verify   func(ctx context.Context, token string) (auth.Account, error)
	mux      *http.ServeMux
	ports    http.Handler // serves ports of sandboxes; bypasses mux, which would clean their paths
	proxy    *httputil.ReverseProxy
	ready    readiness
	shares   shares
	refusals refusals

	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	mu       sync.Mutex
	closed   bool
	requests sync.WaitGroup // all admitted requests
	streams  sync.WaitGroup // of these, long responses and hijacked connections
}

// NewHandler returns a handler for p. The caller must close p after the handler.
func NewHandler(p atoll.Provider, opts Options) (*Handler, error) {
	h := &Handler{provider: p, opts: opts, log: opts.Log, verify: opts.Verify, mux: http.NewServeMux()}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	if h.opts.MaxBody == 0 {
		h.opts.MaxBody = DefaultMaxBody
	}
	if h.opts.Extract == nil {
		h.opts.Extract = wire.StoreTrace
	}
	for token := range opts.Tokens {
		if token == "" {
			return nil, atoll.Errorf("api", "", atoll.ErrInvalid, "empty token in Options.Tokens")
		}
	}
	if len(opts.Tokens) > 0 {
		h.verify = newTokenVerifier(opts.Tokens).withFallback(opts.Verify)
	}
	h.opts.verifyEvery = cmp.Or(opts.verifyEvery, defaultVerifyEvery)
	if h.opts.Denied == nil {
		h.opts.Denied = func(context.Context, string) {}
	}
	h.ready.ask = opts.Ready
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.proxy = newPortProxy(h)
	h.registerRoutes()
	return h, nil
}

// Authenticates reports whether requests need a token.
func (h *Handler) Authenticates() bool { return h.verify != nil }

// Close ends the open streams: the clients of a process are detached with ErrUnavailable and the
// process continues, and a watch ends with ErrUnavailable. Close returns when all goroutines of the
// handler have ended; the server must end the other requests in progress. Later requests get
// ErrUnavailable. A second call does nothing.
func (h *Handler) Close() error {
	h.beginClose()
	h.streams.Wait()
	return nil
}

// beginClose is Close without waiting.
func (h *Handler) beginClose() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.cancel()
}

// beginRequest registers an admitted request. The caller must call h.requests.Done.
func (h *Handler) beginRequest() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return wire.ErrClosing
	}
	h.requests.Add(1)
	return nil
}

// closeGrace is the time that a client has to read pending data when the handler closes.
var closeGrace = 2 * time.Second

// beginStream registers a request whose response takes as long as the client wants, or that
// outlives its response. The returned ctx ends with the handler. The caller must call done.
func (h *Handler) beginStream(w http.ResponseWriter, r *http.Request) (ctx context.Context, done func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, wire.ErrClosing
	}
	what := "streams"
	if linkOf(r.Context()) != nil {
		what = "requests by links" // visitors must not use up what the account has for itself
	}
	release, err := h.shares.reserveShare(r.Context(), what, maxAccountStreams)
	if err != nil {
		return nil, nil, err
	}
	h.streams.Add(1)
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(h.ctx, func() {
		cancel(wire.ErrClosing)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(closeGrace)) // has no effect on a hijacked connection, which its owner closes
	})
	return ctx, func() {
		stop()
		cancel(nil)
		release()
		h.streams.Done()
	}, nil
}

// closingError returns wire.ErrDetached for a client that follows p.
func closingError(p atoll.Process) error {
	return atoll.Errorf("", "", atoll.ErrUnavailable, "%w, process %s may still run", wire.ErrDetached, p.ID())
}

// registerRoutes adds the routes of Routes and of the options to the mux.
func (h *Handler) registerRoutes() {
	for _, route := range Routes() {
		handler := h.routeHandler(route)
		h.mux.Handle(route.muxPattern(), handler)
		if route.passThrough {
			h.ports = handler
		}
	}
	h.mux.Handle("/mcp", h.routeHandler(Route{passThrough: true, serve: (*Handler).serveMCP}))
	h.mux.Handle("/", h.routeHandler(Route{passThrough: true, serve: (*Handler).serveUnknown}))
	if h.opts.Metrics != nil {
		h.mux.Handle("GET /metrics", h.routeHandler(Route{passThrough: true, Admin: true, serve: func(h *Handler, w http.ResponseWriter, r *http.Request) error {
			h.opts.Metrics.ServeHTTP(w, r)
			return nil
		}}))
	}
	if h.opts.Docs != nil {
		docs := h.routeHandler(Route{passThrough: true, Public: true, serve: func(h *Handler, w http.ResponseWriter, r *http.Request) error {
			h.opts.Docs.ServeHTTP(w, r)
			return nil
		}})
		h.mux.Handle("GET /{$}", docs)
		h.mux.Handle("GET /docs", docs)
		h.mux.Handle("GET /docs/{file}", docs)
		h.mux.Handle("GET /openapi.json", docs)
	}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := requestIDOf(r.Header)
	w.Header().Set(wire.RequestIDHeader, id)
	r = r.WithContext(wire.WithRequestID(r.Context(), id))
	if h.verify != nil {
		limitBody(w, r)
	}
	r, isPort := h.findPort(r)
	switch answered := h.allowReading(w, r); {
	case answered:
	case isPort:
		h.ports.ServeHTTP(w, r)
	default:
		h.mux.ServeHTTP(w, r)
	}
}

// routeHandler returns the handler of a route with everything that is common to all routes.
func (h *Handler) routeHandler(route Route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer h.recoverPanic(r)
		start := time.Now()
		w.Header().Set("X-Content-Type-Options", "nosniff")
		r = r.WithContext(h.opts.Extract(r.Context(), r.Header))
		account := "" // before authentication
		err := h.admitRequest(route, w, r, func(admitted *http.Request) error {
			r = admitted
			if h.verify != nil && !route.Public {
				account = auth.AccountFrom(r.Context()).Name
			}
			if route.Admin && auth.AccountFrom(r.Context()).IsRestricted() {
				h.opts.Denied(r.Context(), r.Method+" "+r.URL.Path)
				return atoll.Errorf("", "", atoll.ErrDenied, "requires role %s", auth.RoleAdmin)
			}
			if err := route.checkRequest(r); err != nil {
				return err
			}
			err := route.serve(h, w, r)
			if errors.Is(err, context.Canceled) && !errors.Is(err, errAnswered) && errors.Is(context.Cause(r.Context()), errKeyEnded) {
				return errKeyEnded
			}
			return err
		})
		h.logRequest(r, account, start, err)
		if err != nil && !errors.Is(err, errAnswered) {
			if h.ctx.Err() != nil {
				w.Header().Set("Connection", "close") // sends the client's next request to another server
			}
			writeError(w, wire.RequestID(r.Context()), err)
		}
	})
}

// recoverPanic logs a panic of a route and closes the connection, since the response may be
// incomplete.
func (h *Handler) recoverPanic(r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if v != http.ErrAbortHandler {
		h.log.Error("panic", "method", r.Method, "path", r.URL.Path, "request", wire.RequestID(r.Context()), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	}
	panic(http.ErrAbortHandler) // net/http does not log this value
}

// admitRequest authenticates the request and passes it to serve.
func (h *Handler) admitRequest(route Route, w http.ResponseWriter, r *http.Request, serve func(*http.Request) error) error {
	if route.Public {
		return serve(r)
	}
	if err := h.beginRequest(); err != nil {
		return err
	}
	defer h.requests.Done()
	r = r.WithContext(withOrigin(r))
	cred, err := h.authenticateRequest(route, r)
	if err != nil {
		return err
	}
	admitClient(w, r)
	if h.verify == nil {
		return serve(r)
	}
	ctx := auth.WithAccount(r.Context(), cred.account)
	if cred.verify != nil {
		var stop func()
		ctx, stop = h.watchCredential(ctx, w, cred.verify)
		defer stop()
	}
	if cred.link != nil {
		ctx = withLink(ctx, cred.link)
	}
	return serve(r.WithContext(ctx))
}

// withOrigin returns the context of r with the origin for auth.OriginFrom.
func withOrigin(r *http.Request) context.Context {
	o := auth.Origin{Via: "http", Request: wire.RequestID(r.Context())}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "tcp" {
		o.Address = r.RemoteAddr
	}
	return auth.WithOrigin(r.Context(), o)
}

// errAnswered is in the chain of an error that a route returns after it began the response. Such an
// error is only logged.
var errAnswered = errors.New("answered already")

// alreadyAnswered wraps a non-nil err with errAnswered.
func alreadyAnswered(err error) error {
	if err == nil {
		return nil
	}
	return answeredError{err}
}

type answeredError struct{ error }

func (e answeredError) Unwrap() []error { return []error{errAnswered, e.error} }

func (h *Handler) logRequest(r *http.Request, account string, start time.Time, err error) {
	if !h.log.Enabled(r.Context(), slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{
		slog.String("op", r.Method+" "+r.URL.Path), slog.String("request", wire.RequestID(r.Context())), slog.Duration("dur", time.Since(start)),
	}
	if account != "" {
		attrs = append(attrs, slog.String("account", account))
	}
	if err != nil {
		attrs = append(attrs, slog.String("kind", string(atoll.KindOf(err))), slog.Any("err", err))
	}
	h.log.LogAttrs(r.Context(), slog.LevelDebug, "request", attrs...)
}

// abortResponse breaks off a response that has begun, so that the client detects that it is
// incomplete. It does not return.
func (h *Handler) abortResponse(r *http.Request, err error) error {
	h.log.DebugContext(r.Context(), "response aborted", "op", r.Method+" "+r.URL.Path, "request", wire.RequestID(r.Context()), "err", err)
	panic(http.ErrAbortHandler)
}

// serveUnknown answers requests that match no route. They may come from a newer client.
func (h *Handler) serveUnknown(w http.ResponseWriter, r *http.Request) error {
	return statusError{atoll.Errorf("", "", atoll.ErrUnsupported, "%s %s is not part of this server's API", r.Method, r.URL.Path), http.StatusNotFound}
}

// findSandbox returns the sandbox in the path.
func (h *Handler) findSandbox(r *http.Request) (atoll.Sandbox, error) {
	return h.provider.Get(r.Context(), r.PathValue("id"))
}

// findProcess returns the process in the path.
func (h *Handler) findProcess(r *http.Request) (atoll.Process, error) {
	sb, err := h.findSandbox(r)
	if err != nil {
		return nil, err
	}
	return sb.Process(r.Context(), r.PathValue("pid"))
}
