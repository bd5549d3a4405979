// Package mcp shows the tools of package tool to agents by the Model Context
// Protocol: over a pair of streams, as the stdin and stdout of a program that the
// agent has started, or over HTTP.
//
// What agents make is in the sandbox of a session; see session.Open. Who names
// none, by Options.Caller or with a request, has one for as long as the MCP session:
// when that ends, so does the sandbox. A session that was named stays.
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
)

// Options configure a Server. The zero value gives each MCP session a sandbox of its
// own.
type Options struct {
	// Version is told to clients.
	Version string
	// Caller is for whom calls are made that do not say it themselves.
	Caller tools.Caller
	// IdleTimeout ends an MCP session over HTTP that has had no request for so
	// long; 0 means never. Its sandbox has an idle timeout of its own, which knows
	// what goes on in it.
	IdleTimeout time.Duration
	// Log is told of what cannot be returned; nil discards.
	Log *slog.Logger
}

// A Server shows a Kit to any number of clients.
type Server struct {
	kit  *tools.Kit
	opts Options
	log  *slog.Logger
	mcp  *sdk.Server
	http http.Handler

	mu       sync.Mutex
	closed   bool
	sessions map[*sdk.ServerSession]*clientSession // that have called something
	work     sync.WaitGroup                        // of each, until it has ended
}

// NewServer returns a server for the tools of kit, which stays the caller's. Kinds:
// ErrInvalid.
func NewServer(kit *tools.Kit, opts Options) (*Server, error) { return newServer(kit, opts, nil) }

// newServer is NewServer, but that a test may have its own say of what the server
// can do.
func newServer(kit *tools.Kit, opts Options, adapt func(*sdk.ServerOptions)) (*Server, error) {
	s := &Server{kit: kit, opts: opts, log: opts.Log, sessions: map[*sdk.ServerSession]*clientSession{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if caller, _ := draw(opts.Caller); kit.Offers(toolOpen) {
		if _, err := kit.Scope(caller); err != nil {
			return nil, err
		}
	}
	with := &sdk.ServerOptions{
		Instructions: s.instructions(),
		// No logging, and none of the lists changes by itself.
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}, Resources: s.resourceCapabilities()},
		SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) { c.CacheScope = "private" },
	}
	if adapt != nil {
		adapt(with)
	}
	s.mcp = sdk.NewServer(&sdk.Implementation{Name: "atoll", Title: "Atoll sandboxes", Version: opts.Version}, with)
	for _, t := range kit.Tools() {
		s.mcp.AddTool(s.shown(t), s.call)
	}
	if s.hasResources() {
		s.addResources()
	}
	s.http = s.handler()
	return s, nil
}

// The tools that this package knows by name.
const (
	toolOpen = "sandbox_open"
	toolRead = "sandbox_fs_read"
	toolList = "sandbox_fs_list"
)

// instructions tell the model what the tools are for together.
func (s *Server) instructions() string {
	if !s.kit.Offers(toolOpen) {
		return "sandbox_run runs a program in an isolated sandbox made for that call. Nothing stays for the next one: give it all files that it needs."
	}
	text := "These tools use one isolated Linux sandbox, which is made by the first call. Its files, packages and background processes stay from call to call; " +
		"it is not the user's machine. Run commands by sandbox_exec, in the background what serves or takes long, and use the sandbox_fs tools to read and change files."
	if s.kit.Offers("sandbox_run") {
		text += " sandbox_run uses a fresh sandbox instead, of which nothing stays."
	}
	return text
}

// maxMessage is how long a message of a client may be: a file of the largest size,
// as base64 or as JSON escapes it, and what is around it.
func (s *Server) maxMessage() int64 { return 1<<20 + 2*s.kit.Limits().MaxFileSize }

// Run serves one client over a pair of streams, one message a line, until in ends,
// which is how it is meant to end, or ctx does. Then it breaks off what is in
// progress, ends what was made for this client only, and closes both.
func (s *Server) Run(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	client, err := s.mcp.Connect(ctx, &sdk.IOTransport{Reader: in, Writer: out, MaxLineLength: int(s.maxMessage())}, nil)
	if err != nil {
		return atoll.E("mcp", "", atoll.ErrInternal, err)
	}
	stop := context.AfterFunc(ctx, func() { s.hangUp(client) })
	err = client.Wait()
	stop()
	s.wait(context.WithoutCancel(ctx), client)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return atoll.Errorf("mcp", "", atoll.ErrInvalid, "the client sent what cannot be read: %w", err)
	}
	return nil
}

// hangUp ends an MCP session, and what is in progress for it.
func (s *Server) hangUp(client *sdk.ServerSession) {
	if x, err := s.session(context.Background(), client); err == nil { // else there is none, and will be none
		x.cancel()
	}
	_ = client.Close() // it is of no interest how
}

// Close ends all MCP sessions. Calls in progress are broken off, and it returns when
// what was made for these sessions only is gone. Those that come later are refused.
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
