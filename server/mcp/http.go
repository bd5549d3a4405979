package mcp

import (
	"context"
	"net/http"
	"net/url"
	"time"

	mcpauth "github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// The headers that select the sandbox of a request. The query parameters workflow,
// agent_run and session do the same.
const (
	WorkflowHeader = "Atoll-Workflow"  // the id of a workflow run
	AgentRunHeader = "Atoll-Agent-Run" // the id of the run of an agent
	SessionHeader  = "Atoll-Session"   // a scope, like conversation/c1
)

// CallerOf returns the caller that a request names. Kinds: ErrInvalid.
func CallerOf(h http.Header, query url.Values) (tools.Caller, error) {
	get := func(header, param string) string {
		if v := h.Get(header); v != "" {
			return v
		}
		return query.Get(param)
	}
	var c tools.Caller
	c.WorkflowRunID, c.AgentRunID = get(WorkflowHeader, "workflow"), get(AgentRunHeader, "agent_run")
	for _, id := range []string{c.WorkflowRunID, c.AgentRunID} {
		if id != "" && !atoll.ValidName(id) {
			return c, atoll.Errorf("mcp", "", atoll.ErrInvalid, "id %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", id)
		}
	}
	if text := get(SessionHeader, "session"); text != "" {
		var err error
		if c.Scope, err = session.ParseScope(text); err != nil {
			return c, err
		}
	}
	return c, nil
}

// newHandler returns the SDK's handler, wrapped to carry accounts and requests.
func (s *Server) newHandler() http.Handler {
	streamable := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s.mcp }, &sdk.StreamableHTTPOptions{
		SessionTimeout: s.opts.IdleTimeout, MaxRequestBodyBytes: s.maxMessage(),
		EventStore:                 sdk.NewMemoryEventStore(nil), // for clients that resume a stream; at most 10 MiB
		DisableLocalhostProtection: s.opts.AnyHost,
	})
	// The token has been checked before this handler. With this, the SDK binds a
	// session to the account that began it, and passes the httpRequest to calls.
	known := func(ctx context.Context, _ string, r *http.Request) (*mcpauth.TokenInfo, error) {
		v, _ := ctx.Value(requestContextKey{}).(httpRequest)
		return &mcpauth.TokenInfo{UserID: auth.AccountFrom(ctx).Identity(), Extra: map[string]any{requestKey: v}}, nil
	}
	return mcpauth.RequireBearerToken(known, &mcpauth.RequireBearerTokenOptions{AllowMissingExpiration: true})(streamable)
}

type requestContextKey struct{}

// Headers of MCP.
const (
	sessionID   = "Mcp-Session-Id"
	version     = "Mcp-Protocol-Version"
	lastEventID = "Last-Event-Id" // on a GET that resumes a stream
)

// ServeHTTP serves MCP as streamable HTTP. It doesn't authenticate, but rejects
// requests of web pages that Options.Origins does not admit: the caller has to check permissions before.
// The account in the request's context applies to all calls, and only it can use the
// session. A DELETE returns when the session's own resources are gone.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	caller, err := CallerOf(r.Header, r.URL.Query())
	switch {
	case closed:
		http.Error(w, "the server is closing", http.StatusServiceUnavailable)
		return
	case !s.opts.Origins.Admits(r):
		http.Error(w, "requests from pages of other origins are not allowed, unless the server lists the origin", http.StatusForbidden)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	account := auth.AccountFrom(ctx).Identity()
	conn := &connection{session: r.Header.Get(sessionID), account: account, ended: make(chan struct{}), end: func() {
		cancel()
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now())
	}}
	defer s.releaseStream(conn)
	response := newPingWriter(w, r, s.pingEvery)
	defer response.endComments()
	response.first = func(event []byte) { s.claimStream(ctx, firstStream(event), conn) }
	request := httpRequest{ctx: ctx, caller: caller, resumable: canResume(r), keepAlive: response.keepAlive}
	ctx = context.WithValue(ctx, requestContextKey{}, request)
	r = r.Clone(ctx)
	r.Header.Set("Authorization", "Bearer -") // the real token has been checked
	client, x := s.clientOf(conn.session, account)
	switch {
	case client != nil && r.Method == http.MethodDelete:
		s.hangUp(client) // otherwise the SDK waits for calls in progress
		s.waitEnded(ctx, client)
		w.WriteHeader(http.StatusNoContent)
		return
	case client != nil && r.Method == http.MethodGet && r.Header.Get(lastEventID) != "":
		defer x.beginResumed()()
		s.claimStream(ctx, streamOf(r.Header.Get(lastEventID)), conn)
		response.header = http.Header{}
		response.keepAlive()
	}
	s.http.ServeHTTP(response, r)
}

// clientOf returns an account's session that has made a call, nil if there is none.
func (s *Server) clientOf(id, account string) (*sdk.ServerSession, *clientSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for client, x := range s.sessions {
		if id != "" && client.ID() == id && x.account == account {
			return client, x
		}
	}
	return nil, nil
}
