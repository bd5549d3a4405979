package mcp

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	mcpauth "github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// The headers by which a request names whose sandbox it is about. The query can
// have them as well: workflow, agent_run, session.
const (
	WorkflowHeader = "Atoll-Workflow"  // the id of a workflow run
	AgentRunHeader = "Atoll-Agent-Run" // the id of the run of an agent
	SessionHeader  = "Atoll-Session"   // a scope, like conversation/c1
)

// CallerOf is what a request says of whose sandbox it is about. Kinds: ErrInvalid.
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

// handler is the SDK's handler, with what is our own around it.
func (s *Server) handler() http.Handler {
	streamable := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s.mcp }, &sdk.StreamableHTTPOptions{
		SessionTimeout: s.opts.IdleTimeout, MaxRequestBodyBytes: s.maxMessage(),
	})
	// Whoever is in front of us has looked at the token. This makes the SDK keep
	// a session to the account that began it, and hand a visit to what is called.
	known := func(ctx context.Context, _ string, r *http.Request) (*mcpauth.TokenInfo, error) {
		v, _ := ctx.Value(visitContextKey{}).(visit)
		return &mcpauth.TokenInfo{UserID: auth.AccountFrom(ctx).Who(), Extra: map[string]any{visitKey: v}}, nil
	}
	return mcpauth.RequireBearerToken(known, &mcpauth.RequireBearerTokenOptions{AllowMissingExpiration: true})(streamable)
}

type visitContextKey struct{}

// sessionID is the header that names an MCP session.
const sessionID = "Mcp-Session-Id"

// ServeHTTP serves MCP as streamable HTTP. It lets in whoever comes, but for pages
// of other origins in a browser: who may is to be found out before. An account that
// the request's ctx has is that of all calls, and the only one that can use the
// session. A DELETE returns when what belonged to the session is gone.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	caller, err := CallerOf(r.Header, r.URL.Query())
	switch {
	case closed:
		http.Error(w, "the server is closing", http.StatusServiceUnavailable)
		return
	case foreign(r):
		http.Error(w, "a page of another origin may not do this", http.StatusForbidden)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx := context.WithValue(r.Context(), visitContextKey{}, visit{r.Context(), caller})
	r = r.Clone(ctx)
	r.Header.Set("Authorization", "Bearer -") // whoever needs ours has had it
	if r.Method != http.MethodDelete {
		s.http.ServeHTTP(w, r)
		return
	}
	client := s.clientOf(r.Header.Get(sessionID), auth.AccountFrom(ctx).Who())
	if client != nil {
		s.hangUp(client) // the SDK would wait for what is in progress
		s.wait(ctx, client)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	s.http.ServeHTTP(w, r)
}

// clientOf finds the session of an account that has called something, nil if there
// is none.
func (s *Server) clientOf(id, account string) *sdk.ServerSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	for client, x := range s.sessions {
		if id != "" && client.ID() == id && x.account == account {
			return client
		}
	}
	return nil
}

// foreign reports whether a browser sends this for a page that is not of this
// server: only there is an Origin.
func foreign(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		site := r.Header.Get("Sec-Fetch-Site")
		return site != "" && site != "same-origin" && site != "none"
	}
	u, err := url.Parse(origin)
	return err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host)
}
