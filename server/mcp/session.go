package mcp

import (
	"cmp"
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// A clientSession is an MCP session that has made a call.
type clientSession struct {
	first   context.Context // of the first call, with its account
	ctx     context.Context // ends with the session
	cancel  context.CancelFunc
	account string // see auth.Account.Identity
	ended   chan struct{}

	mu        sync.Mutex
	remote    bool                          // over HTTP
	callers   map[tools.Caller]tools.Caller // completed callers, by the given ones
	ownScopes []session.Scope               // scopes that end with the session
	resumed   int                           // open streams that the client has resumed
	away      time.Time                     // when the last of them ended
}

// completeCaller sets missing ids of a caller to random ones. It returns the scope that
// only this caller uses, if there is one.
func completeCaller(c tools.Caller) (tools.Caller, session.Scope) {
	if c.Scope != (session.Scope{}) {
		return c, session.Scope{}
	}
	id := "mcp_" + strings.ToLower(rand.Text()[:16])
	own := session.Scope{}
	if c.AgentRunID == "" {
		if c.AgentRunID = id; c.WorkflowRunID == "" {
			c.WorkflowRunID = id
			return c, session.Scope{Kind: session.ScopeWorkflow, ID: id}
		}
		own = session.Scope{Kind: session.ScopeAgent, ID: id}
	}
	return c, own
}

// sessionOf returns the state of a client's session; the first call creates it.
func (s *Server) sessionOf(ctx context.Context, client *sdk.ServerSession) (*clientSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.sessions[client]; x != nil {
		return x, nil
	}
	if s.closed {
		return nil, atoll.Errorf("mcp", "", atoll.ErrUnavailable, "the server is closing")
	}
	x := &clientSession{first: context.WithoutCancel(ctx), account: auth.AccountFrom(ctx).Identity(), ended: make(chan struct{}), callers: map[tools.Caller]tools.Caller{}}
	x.ctx, x.cancel = context.WithCancel(x.first)
	s.sessions[client] = x
	s.work.Go(func() {
		_ = client.Wait() // however it ended
		over := !x.hasTimedOut()
		x.cancel()
		if over {
			s.endScopes(x)
		}
		s.mu.Lock()
		delete(s.sessions, client)
		s.mu.Unlock()
		close(x.ended)
	})
	return x, nil
}

// hasTimedOut reports whether x, which has just ended, was ended by its idle timeout.
// Then a server in its sandbox may be in use, or a build may be running: the sandbox's
// own idle timeout decides.
func (x *clientSession) hasTimedOut() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.remote && x.ctx.Err() == nil
}

// waitEnded waits until all resources of a client are gone.
func (s *Server) waitEnded(ctx context.Context, client *sdk.ServerSession) {
	s.mu.Lock()
	x := s.sessions[client]
	s.mu.Unlock()
	if x == nil {
		return
	}
	select {
	case <-x.ended:
	case <-ctx.Done():
	}
}

// endTime bounds the removal of a session's own sandboxes.
const endTime = time.Minute

// endScopes closes the sandbox sessions that were made for this MCP session only.
func (s *Server) endScopes(x *clientSession) {
	ctx, cancel := context.WithTimeout(x.first, endTime)
	defer cancel()
	x.mu.Lock()
	drawn := x.ownScopes
	x.mu.Unlock()
	for _, scope := range drawn {
		if err := s.kit.End(ctx, scope); err != nil {
			s.log.Warn("end of an MCP session", "scope", scope.Key(), "err", err) // its idle timeout ends it
		}
	}
}

// callerFor returns the caller of a call, given the one that the request names.
func (x *clientSession) callerFor(given tools.Caller) tools.Caller {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c, ok := x.callers[given]; ok {
		return c
	}
	c, own := completeCaller(given)
	if x.callers[given] = c; own != (session.Scope{}) {
		x.ownScopes = append(x.ownScopes, own)
	}
	return c
}

// An httpRequest is the HTTP request that a message came with.
type httpRequest struct {
	ctx    context.Context // ends when the client has gone
	caller tools.Caller    // named by the request

	resumable bool   // the client may come back for the answer
	keepAlive func() // keeps the response alive while a call is in progress; nil without HTTP
}

// requestKey is the SDK's key for the httpRequest.
const requestKey = "visit"

func requestOf(extra *sdk.RequestExtra) httpRequest {
	if extra == nil || extra.TokenInfo == nil {
		return httpRequest{}
	}
	v, _ := extra.TokenInfo.Extra[requestKey].(httpRequest)
	return v
}

// beginCall starts a request of a client. The returned context ends with the session,
// or when the client has gone and does not come back for the answer.
func (s *Server) beginCall(ctx context.Context, client *sdk.ServerSession, extra *sdk.RequestExtra) (context.Context, tools.Caller, func(), error) {
	x, err := s.sessionOf(ctx, client)
	if err != nil {
		return nil, tools.Caller{}, nil, err
	}
	v := requestOf(extra)
	ctx, cancel := context.WithCancel(ctx)
	stops := []func() bool{context.AfterFunc(x.ctx, cancel)}
	if v.ctx != nil {
		stops = append(stops, context.AfterFunc(v.ctx, func() {
			if !v.resumable || s.waitAway(ctx, x) {
				cancel()
			}
		}))
		x.mu.Lock()
		x.remote = true
		x.mu.Unlock()
	}
	return ctx, x.callerFor(mergeCaller(v.caller, s.opts.Caller)), func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}, nil
}

// mergeCaller returns the caller in a request, with the configured values for missing
// ones.
func mergeCaller(c, base tools.Caller) tools.Caller {
	if c.Scope == (session.Scope{}) && c.WorkflowRunID == "" && c.AgentRunID == "" {
		c.Scope, c.WorkflowRunID, c.AgentRunID = base.Scope, base.WorkflowRunID, base.AgentRunID
	}
	c.AgentName, c.Environment = cmp.Or(c.AgentName, base.AgentName), cmp.Or(c.Environment, base.Environment)
	return c
}
