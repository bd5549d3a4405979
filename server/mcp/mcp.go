// Package mcp offers the tools of package tools to agents with the Model Context
// Protocol: over a pair of streams, such as the stdin and stdout of a program started
// by the agent, or over HTTP.
//
// Calls use the sandbox of a session; see session.Open. If neither Options.Caller
// nor the request names a session, the MCP session gets one of its own: when that ends,
// so does the sandbox. Named sessions stay.
//
//	kit, err := tools.New(p, tools.Options{})
//	s, err := mcp.NewServer(kit, mcp.Options{})
//	err = s.Run(ctx, os.Stdin, os.Stdout) // or http.Handle("/mcp", s)
package mcp

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/server/origin"
)

// Options configure a Server. The zero value gives each MCP session a sandbox of its
// own.
type Options struct {
	// Version is reported to clients.
	Version string
	// Caller is the caller for requests that name none.
	Caller tools.Caller
	// IdleTimeout ends an MCP session over HTTP after this time without a request; 0
	// means never. Its sandbox has an idle timeout of its own, which considers its
	// activity.
	IdleTimeout time.Duration
	// AnyHost accepts HTTP requests for any host name on loopback addresses, such as that of a
	// proxy. It is for servers that check a token: without one, a web page whose name was made
	// to resolve to this machine could use the tools.
	AnyHost bool
	// Origins admits web pages. With nil, only pages of the host that a request names may use the
	// tools.
	Origins *origin.Policy
	// Log receives errors that cannot be returned; nil discards them.
	Log *slog.Logger
}

// A Server offers a Kit to any number of clients.
type Server struct {
	kit  *tools.Kit
	opts Options
	log  *slog.Logger
	mcp  *sdk.Server
	http http.Handler

	pingEvery  time.Duration // interval of comments on open streams
	resumeTime time.Duration // how long a call goes on without a connection

	mu       sync.Mutex
	closed   bool
	sessions map[*sdk.ServerSession]*clientSession // that have made a call
	streams  map[string]*connection                // of answers that are open
	work     sync.WaitGroup                        // one per session, until it has ended
}

// NewServer returns a server for the tools of kit, which the caller keeps. Kinds:
// ErrInvalid.
func NewServer(kit *tools.Kit, opts Options) (*Server, error) { return newServer(kit, opts, nil) }

// newServer is NewServer with a hook for tests that changes the server's capabilities.
func newServer(kit *tools.Kit, opts Options, adapt func(*sdk.ServerOptions)) (*Server, error) {
	s := &Server{kit: kit, opts: opts, log: opts.Log, pingEvery: pingInterval, resumeTime: resumeTime, sessions: map[*sdk.ServerSession]*clientSession{}, streams: map[string]*connection{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if caller, _ := completeCaller(opts.Caller); kit.Offers(toolOpen) {
		if _, err := kit.Scope(caller); err != nil {
			return nil, err
		}
	}
	with := &sdk.ServerOptions{
		Instructions: s.instructions(),
		// No logging, and the lists never change by themselves.
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}, Resources: s.resourceCapabilities()},
		SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) { c.CacheScope = "private" },
	}
	if adapt != nil {
		adapt(with)
	}
	s.mcp = sdk.NewServer(&sdk.Implementation{Name: "atoll", Title: "Atoll sandboxes", Version: opts.Version}, with)
	for _, t := range kit.Tools() {
		s.mcp.AddTool(s.toolInfo(t), s.callTool)
	}
	s.mcp.AddReceivingMiddleware(hideSchemas)
	if s.hasResources() {
		s.addResources()
	}
	s.http = s.newHandler()
	return s, nil
}

// Names of tools that this package uses.
const (
	toolOpen = "sandbox_open"
	toolRead = "sandbox_fs_read"
	toolList = "sandbox_fs_list"
)

// instructions returns the model's introduction to the tools and their sandboxes.
func (s *Server) instructions() string {
	if !s.kit.Offers(toolOpen) {
		return "sandbox_run runs a program in a new, isolated sandbox. Nothing remains for the next call: pass all files that the program needs. " + s.kit.About()
	}
	text := "These tools share one isolated Linux sandbox, which the first call creates. Files, packages and background processes remain from call to call. " +
		"Run commands with sandbox_exec; run servers and long work in the background. Read and change files with the sandbox_fs tools. "
	if s.kit.Offers("sandbox_run") {
		text += "sandbox_run uses a new sandbox for each call instead. "
	}
	return text + s.kit.About() + " sandbox_open also lists the programs that are installed."
}

// maxMessage returns the most bytes of a client's message: a file of maximum size,
// escaped as base64 or JSON, with its envelope.
func (s *Server) maxMessage() int64 { return 1<<20 + 2*s.kit.Limits().MaxFileSize }

// Run serves one client over a pair of streams, one message a line, until in ends,
// which is the normal end, or ctx does. Then it cancels calls in progress, removes
// resources of this client only, and closes both streams.
func (s *Server) Run(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	client, err := s.mcp.Connect(ctx, &sdk.IOTransport{Reader: in, Writer: out, MaxLineLength: int(s.maxMessage())}, nil)
	if err != nil {
		return atoll.E("mcp", "", atoll.ErrInternal, err)
	}
	stop := context.AfterFunc(ctx, func() { s.hangUp(client) })
	err = client.Wait()
	stop()
	s.waitEnded(context.WithoutCancel(ctx), client)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return atoll.Errorf("mcp", "", atoll.ErrInvalid, "cannot read the client's message: %w", err)
	}
	return nil
}

// hangUp ends an MCP session and its calls in progress.
func (s *Server) hangUp(client *sdk.ServerSession) {
	if x, err := s.sessionOf(context.Background(), client); err == nil { // an error means that the server is closing and has no such session
		x.cancel()
	}
	_ = client.Close() // the result doesn't matter
}

// Close ends all MCP sessions. It cancels calls in progress, and returns when the
// resources of these sessions only are gone. Later sessions are refused.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, x := range s.sessions {
		x.cancel()
	}
	s.mu.Unlock()
	var all sync.WaitGroup
	for _, client := range slices.Collect(s.mcp.Sessions()) {
		all.Go(func() { s.hangUp(client) })
	}
	all.Wait()
	s.work.Wait()
	return nil
}
