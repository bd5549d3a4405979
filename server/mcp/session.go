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

// A clientSession is an MCP session that has called something.
type clientSession struct {
	first   context.Context // of the call: whose account it is
	ctx     context.Context // ends with the session
	cancel  context.CancelFunc
	account string // see auth.Account.Who
	ended   chan struct{}

	mu      sync.Mutex
	remote  bool                          // over HTTP
	callers map[tools.Caller]tools.Caller // what stands for those that were given
	drawn   []session.Scope               // what ends with the session
}

// draw gives a caller the ids that it lacks. The scope is the one that is the
// caller's own then, if there is one.
func draw(c tools.Caller) (tools.Caller, session.Scope) {
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

// session finds what is known of a client's session, from its first call on.
func (s *Server) session(ctx context.Context, client *sdk.ServerSession) (*clientSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.sessions[client]; x != nil {
		return x, nil
	}
	if s.closed {
		return nil, atoll.Errorf("mcp", "", atoll.ErrUnavailable, "the server is closing")
	}
	x := &clientSession{first: context.WithoutCancel(ctx), account: auth.AccountFrom(ctx).Who(), ended: make(chan struct{}), callers: map[tools.Caller]tools.Caller{}}
	x.ctx, x.cancel = context.WithCancel(x.first)
	s.sessions[client] = x
	s.work.Go(func() {
		_ = client.Wait() // however it ended
		over := !x.silent()
		x.cancel()
		if over {
			s.end(x)
		}
		s.mu.Lock()
		delete(s.sessions, client)
		s.mu.Unlock()
		close(x.ended)
	})
	return x, nil
}

// silent reports whether x, which has just ended, has done so since its client has said
// nothing for too long. A server that it has started may be in use, or a build go on:
// what is idle about its sandbox, the idle timeout of that knows better.
func (x *clientSession) silent() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.remote && x.ctx.Err() == nil
}

// wait waits until all that belonged to a client is gone.
func (s *Server) wait(ctx context.Context, client *sdk.ServerSession) {
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

// endTime is how long it may take to end what a session has drawn.
const endTime = time.Minute

// end closes the sessions of sandboxes that were made for this MCP session only.
func (s *Server) end(x *clientSession) {
	ctx, cancel := context.WithTimeout(x.first, endTime)
	defer cancel()
	x.mu.Lock()
	drawn := x.drawn
	x.mu.Unlock()
	for _, scope := range drawn {
		if err := s.kit.End(ctx, scope); err != nil {
			s.log.Warn("end of an MCP session", "scope", scope.Key(), "err", err) // its idle timeout ends it
		}
	}
}

// caller is for whom a call is made, given what the request says of it.
func (x *clientSession) caller(given tools.Caller) tools.Caller {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c, ok := x.callers[given]; ok {
		return c
	}
	c, own := draw(given)
	if x.callers[given] = c; own != (session.Scope{}) {
		x.drawn = append(x.drawn, own)
	}
	return c
}

// A visit is what is known of the HTTP request that a message came with.
type visit struct {
	ctx    context.Context // ends when the client has gone
	caller tools.Caller    // what the request says
}

// visitKey is where the SDK carries a visit for us.
const visitKey = "visit"

func visitOf(extra *sdk.RequestExtra) visit {
	if extra == nil || extra.TokenInfo == nil {
		return visit{}
	}
	v, _ := extra.TokenInfo.Extra[visitKey].(visit)
	return v
}

// begin is the beginning of what a client asks for. Its ctx ends with the session,
// and when the client has gone, who could not be answered any more.
func (s *Server) begin(ctx context.Context, client *sdk.ServerSession, extra *sdk.RequestExtra) (context.Context, tools.Caller, func(), error) {
	x, err := s.session(ctx, client)
	if err != nil {
		return nil, tools.Caller{}, nil, err
	}
	v := visitOf(extra)
	ctx, cancel := context.WithCancel(ctx)
	stops := []func() bool{context.AfterFunc(x.ctx, cancel)}
	if v.ctx != nil {
		stops = append(stops, context.AfterFunc(v.ctx, cancel))
		x.mu.Lock()
		x.remote = true
		x.mu.Unlock()
	}
	return ctx, x.caller(over(v.caller, s.opts.Caller)), func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}, nil
}

// over is what a request says of the caller, and for the rest what is configured.
func over(c, base tools.Caller) tools.Caller {
	if c.Scope == (session.Scope{}) && c.WorkflowRunID == "" && c.AgentRunID == "" {
		c.Scope, c.WorkflowRunID, c.AgentRunID = base.Scope, base.WorkflowRunID, base.AgentRunID
	}
	c.AgentName, c.Environment = cmp.Or(c.AgentName, base.AgentName), cmp.Or(c.Environment, base.Environment)
	return c
}
