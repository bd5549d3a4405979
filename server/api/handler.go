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
	"github.com/seed46cd37a8/atoll/server/auth"
)

// Options configure a Handler. The zero value lets everybody in, which is
// right behind a unix socket only; see Serve.
type Options struct {
	// Tokens are the bearer tokens that are let in, and whose they are.
	Tokens map[string]auth.Account
	// Verify is asked about those that Tokens does not have. Its errors are ErrDenied,
	// unless they are ErrUnavailable. It is asked again while a request goes on that an
	// API key has let in, which is broken off when the key is not good any more.
	Verify func(ctx context.Context, token string) (auth.Account, error)

	// MaxBody is the largest JSON body, in bytes; 0 means DefaultMaxBody.
	MaxBody int64
	// MaxUpload is the largest file, tar stream or input, in bytes; 0 means no
	// limit.
	MaxUpload int64

	// Log gets a line for each request at Debug, and louder ones for what only
	// the handler knows, such as a panic: who failed is told, by the answer, and
	// what the provider did is for a layer to log. nil discards.
	Log *slog.Logger
	// Metrics serves /metrics; nil means there are none.
	Metrics http.Handler
	// Docs serves /docs and /openapi.json, without a token: package openapi has
	// one. nil means there are none.
	Docs http.Handler
	// Tools are shown by /v1/tools; nil means there are none.
	Tools Tools
	// MCP serves /mcp, with the account of the token in the request's context;
	// nil means there is nothing there. It is the caller's to close, after the
	// Handler.
	MCP http.Handler
	// Keys are served below /v1/keys; nil means there are none. They are the caller's
	// to close, after the Handler.
	Keys Keys
	// Audit is served at /v1/audit; nil means that there is none. It is the caller's to
	// close, after the Handler.
	Audit AuditLog
	// Denied is told of what is refused before the provider is asked: to whom is in
	// ctx, unless that is not known. nil means that nobody is.
	Denied func(ctx context.Context, what string)
	// Conversations are served below /v1/conversation and /v1/sandbox; nil means there
	// are none. They are the caller's to close, after the Handler.
	Conversations Conversations
	// Ready returns why requests should not be sent here for now, such as a store that does
	// not answer: /readyz says that it is so, and the log why. It is asked once in a second
	// at most, and may take 5. nil means that a server is ready until it closes.
	Ready func(ctx context.Context) error
	// Version of this server, told by /v1/info.
	Version string

	// Extract takes the trace context from a request's headers. nil keeps the
	// W3C headers in ctx, for a Client to pass on.
	Extract func(ctx context.Context, h http.Header) context.Context

	again time.Duration // for tests: how often Verify is asked again; 0 means verifyAgain
}

// verifyAgain is how often the key of a request that goes on is looked at again.
const verifyAgain = 10 * time.Second

// DefaultMaxBody is the largest JSON body that is accepted.
const DefaultMaxBody = 4 << 20

// A Handler serves a Provider over HTTP.
type Handler struct {
	provider atoll.Provider
	opts     Options
	log      *slog.Logger
	verify   func(ctx context.Context, token string) (auth.Account, error)
	mux      *http.ServeMux
	ports    http.Handler // what the mux would change the paths of
	proxy    *httputil.ReverseProxy
	ready    readiness

	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	mu       sync.Mutex
	closed   bool
	requests sync.WaitGroup // all that were let in
	streams  sync.WaitGroup // of those, long answers and taken over connections
}

// NewHandler returns a handler for p, which stays the caller's to close, after
// the handler.
func NewHandler(p atoll.Provider, opts Options) (*Handler, error) {
	h := &Handler{provider: p, opts: opts, log: opts.Log, verify: opts.Verify, mux: http.NewServeMux()}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	if h.opts.MaxBody == 0 {
		h.opts.MaxBody = DefaultMaxBody
	}
	if h.opts.Extract == nil {
		h.opts.Extract = keepTrace
	}
	for token := range opts.Tokens {
		if token == "" {
			return nil, atoll.Errorf("api", "", atoll.ErrInvalid, "a token is empty")
		}
	}
	if len(opts.Tokens) > 0 {
		h.verify = newTokenVerifier(opts.Tokens).or(opts.Verify)
	}
	h.opts.again = cmp.Or(opts.again, verifyAgain)
	if h.opts.Denied == nil {
		h.opts.Denied = func(context.Context, string) {}
	}
	h.ready.ask = opts.Ready
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.proxy = newPortProxy(h)
	h.register()
	return h, nil
}

// Authenticates reports whether a token is needed.
func (h *Handler) Authenticates() bool { return h.verify != nil }

// Close ends the streams that are open: a client of a process is detached with
// ErrUnavailable and the process lives on, a watch ends with ErrUnavailable. It returns when
// nothing that the handler started is left; other requests in progress are the
// server's to end. Those that come later get ErrUnavailable. A second Close does
// nothing.
func (h *Handler) Close() error {
	h.end()
	h.streams.Wait()
	return nil
}

// end is Close that does not wait.
func (h *Handler) end() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.cancel()
}

// begin counts in a request that is let in, until h.requests is told that it is
// done.
func (h *Handler) begin() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errClosing
	}
	h.requests.Add(1)
	return nil
}

// closeGrace is how long a client may take, when the handler closes, to read
// what is being sent to it.
const closeGrace = 2 * time.Second

// stream counts in a request that outlives its answer, or whose answer takes
// as long as the client likes. Its ctx ends with the handler; the caller calls
// done at its end.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request) (ctx context.Context, done func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, errClosing
	}
	h.streams.Add(1)
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(h.ctx, func() {
		cancel(errClosing)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(closeGrace)) // one that was taken over is closed by whoever did
	})
	return ctx, func() {
		stop()
		cancel(nil)
		h.streams.Done()
	}, nil
}

// Why a server that closes does not answer: it has done nothing of what was asked, or has
// left what it followed.
var (
	errClosing  = atoll.Errorf("", "", atoll.ErrUnavailable, "the server is closing")
	errDetached = atoll.Errorf("", "", atoll.ErrUnavailable, "the server is closing")
)

// closingOn is errDetached for whoever follows p.
func closingOn(p atoll.Process) error {
	return atoll.Errorf("", "", atoll.ErrUnavailable, "%w, process %s may still run", errDetached, p.ID())
}

// register enters every route. Static ones come from Routes.
func (h *Handler) register() {
	for _, route := range Routes() {
		handler := h.handle(route)
		h.mux.Handle(route.pattern(), handler)
		if route.foreign {
			h.ports = handler
		}
	}
	h.mux.Handle("/mcp", h.handle(Route{foreign: true, serve: (*Handler).serveMCP}))
	h.mux.Handle("/", h.handle(Route{foreign: true, serve: (*Handler).serveUnknown}))
	if h.opts.Metrics != nil {
		h.mux.Handle("GET /metrics", h.handle(Route{foreign: true, Admin: true, serve: func(h *Handler, w http.ResponseWriter, r *http.Request) error {
			h.opts.Metrics.ServeHTTP(w, r)
			return nil
		}}))
	}
	if h.opts.Docs != nil {
		docs := h.handle(Route{foreign: true, Public: true, serve: func(h *Handler, w http.ResponseWriter, r *http.Request) error {
			h.opts.Docs.ServeHTTP(w, r)
			return nil
		}})
		h.mux.Handle("GET /docs", docs)
		h.mux.Handle("GET /openapi.json", docs)
	}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := requestIDOf(r.Header)
	w.Header().Set(RequestIDHeader, id)
	r = r.WithContext(WithRequestID(r.Context(), id))
	if _, _, _, ok := proxied(r.URL); ok {
		h.ports.ServeHTTP(w, r)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// handle wraps a route in what all of them have in common.
func (h *Handler) handle(route Route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer h.cutOff(r)
		start := time.Now()
		w.Header().Set("X-Content-Type-Options", "nosniff")
		r = r.WithContext(h.opts.Extract(r.Context(), r.Header))
		who := "" // nobody who has been let in
		err := h.admit(route, w, r, func(admitted *http.Request) error {
			r = admitted
			if h.verify != nil && !route.Public {
				who = auth.AccountFrom(r.Context()).Name
			}
			if route.Admin && auth.AccountFrom(r.Context()).Bounded() {
				h.opts.Denied(r.Context(), r.Method+" "+r.URL.Path)
				return atoll.Errorf("", "", atoll.ErrDenied, "this takes the role %s", auth.RoleAdmin)
			}
			if err := route.check(r); err != nil {
				return err
			}
			return route.serve(h, w, r)
		})
		h.logRequest(r, who, start, err)
		if err != nil && !errors.Is(err, errAnswered) {
			if h.ctx.Err() != nil {
				w.Header().Set("Connection", "close") // the next one goes elsewhere
			}
			writeError(w, RequestID(r.Context()), err)
		}
	})
}

// cutOff ends a request whose handler panicked: the connection is closed, which
// is all that can be done about an answer that may have begun.
func (h *Handler) cutOff(r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if v != http.ErrAbortHandler {
		h.log.Error("panic", "method", r.Method, "path", r.URL.Path, "request", RequestID(r.Context()), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	}
	panic(http.ErrAbortHandler) // which net/http does not log once more
}

// admit lets the request through to serve when its sender may.
func (h *Handler) admit(route Route, w http.ResponseWriter, r *http.Request, serve func(*http.Request) error) error {
	if route.Public {
		return serve(r)
	}
	if err := h.begin(); err != nil {
		return err
	}
	defer h.requests.Done()
	r = r.WithContext(withOrigin(r))
	account, token, err := h.authenticate(route, r)
	if err != nil {
		return err
	}
	if h.verify == nil {
		return serve(r)
	}
	ctx := auth.WithAccount(r.Context(), account)
	if account.Key != "" {
		var stop func()
		ctx, stop = h.whileGood(ctx, w, token)
		defer stop()
	}
	return serve(r.WithContext(ctx))
}

// withOrigin is the ctx of r, for auth.OriginFrom.
func withOrigin(r *http.Request) context.Context {
	o := auth.Origin{Via: "http", Request: RequestID(r.Context())}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "tcp" {
		o.Address = r.RemoteAddr
	}
	return auth.WithOrigin(r.Context(), o)
}

// errAnswered is in the chain of what a route returns after it has begun to
// answer: it is logged only.
var errAnswered = errors.New("answered already")

func answered(err error) error {
	if err == nil {
		return nil
	}
	return answeredError{err}
}

type answeredError struct{ error }

func (e answeredError) Unwrap() []error { return []error{errAnswered, e.error} }

func (h *Handler) logRequest(r *http.Request, who string, start time.Time, err error) {
	if !h.log.Enabled(r.Context(), slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{
		slog.String("op", r.Method+" "+r.URL.Path), slog.String("request", RequestID(r.Context())), slog.Duration("dur", time.Since(start)),
	}
	if who != "" {
		attrs = append(attrs, slog.String("account", who))
	}
	if err != nil {
		attrs = append(attrs, slog.String("kind", string(atoll.KindOf(err))), slog.Any("err", err))
	}
	h.log.LogAttrs(r.Context(), slog.LevelDebug, "request", attrs...)
}

// abort breaks an answer off that has begun, so that the client does not take
// it for complete. It does not return.
func (h *Handler) abort(r *http.Request, err error) error {
	h.log.DebugContext(r.Context(), "broken off", "op", r.Method+" "+r.URL.Path, "request", RequestID(r.Context()), "err", err)
	panic(http.ErrAbortHandler)
}

// serveUnknown answers what no route matches: a newer client may ask for it.
func (h *Handler) serveUnknown(w http.ResponseWriter, r *http.Request) error {
	return statusError{atoll.Errorf("", "", atoll.ErrUnsupported, "%s %s is not part of this server's API", r.Method, r.URL.Path), http.StatusNotFound}
}

// sandbox finds the sandbox that the path names.
func (h *Handler) sandbox(r *http.Request) (atoll.Sandbox, error) {
	return h.provider.Get(r.Context(), r.PathValue("id"))
}

// process finds the process that the path names.
func (h *Handler) process(r *http.Request) (atoll.Process, error) {
	sb, err := h.sandbox(r)
	if err != nil {
		return nil, err
	}
	return sb.Process(r.Context(), r.PathValue("pid"))
}
