package mcp

import (
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed46cd37a8/atoll/agent/tools"
)

// NewFixtures returns a server with fixtures from add, besides its tools.
func NewFixtures(kit *tools.Kit, adapt func(*sdk.ServerOptions), add func(*sdk.Server)) (*Server, error) {
	s, err := newServer(kit, Options{}, adapt)
	if err == nil {
		add(s.mcp)
	}
	return s, err
}

// Clients counts the MCP sessions, used or not.
func (s *Server) Clients() (n int) {
	for range s.mcp.Sessions() {
		n++
	}
	return n
}

// PingEvery sets the interval of the comments on open streams.
func PingEvery(s *Server, interval time.Duration) { s.pingEvery = interval }

// ResumeTime sets how long a call goes on without a connection to its client.
func ResumeTime(s *Server, d time.Duration) { s.resumeTime = d }
