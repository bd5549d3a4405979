package session

import (
	"context"
	"net"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/idletracker"
	"github.com/seed46cd37a8/atoll/internal/lazyfs"
)

// useTracker records when sandboxes were used, if their provider cannot tell.
type useTracker struct {
	mu        sync.Mutex
	bySandbox map[string]*idletracker.Use // by sandbox ID
	hasNew    bool                        // a sandbox was added since the last takeAdded
}

// forSandbox returns the use of a sandbox, which it tracks from now on.
func (u *useTracker) forSandbox(id string) *idletracker.Use {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.bySandbox == nil {
		u.bySandbox = map[string]*idletracker.Use{}
	}
	if u.bySandbox[id] == nil {
		u.bySandbox[id], u.hasNew = &idletracker.Use{}, true
	}
	return u.bySandbox[id]
}

// takeAdded reports whether a sandbox was added since the last call.
func (u *useTracker) takeAdded() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	added := u.hasNew
	u.hasNew = false
	return added
}

// dropSandbox stops tracking a sandbox.
func (u *useTracker) dropSandbox(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.bySandbox, id)
}

// beginUse records that a tracked sandbox is in use until the caller calls end.
func (u *useTracker) beginUse(id string) (end func()) {
	u.mu.Lock()
	use := u.bySandbox[id]
	u.mu.Unlock()
	if use == nil {
		return func() {}
	}
	return use.Begin()
}

// A sandbox records its use. It does not track commands after Exec: the provider
// lists them.
type sandbox struct {
	atoll.SandboxLayer
	l *Provider
}

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.SandboxLayer.Status(ctx)
	st.Caps.Sessions = err == nil
	return st, err
}

// Exec implements atoll.Sandbox.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	defer s.l.tracker.beginUse(s.ID())()
	return s.SandboxLayer.Exec(ctx, cmd)
}

// Process implements atoll.Sandbox.
func (s *sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	defer s.l.tracker.beginUse(s.ID())()
	p, err := s.SandboxLayer.Process(ctx, id)
	if err != nil {
		return nil, err
	}
	return &process{atoll.ProcessLayer{Process: p}, s}, nil
}

// A process records use while a caller is attached to it or waits for it. Without
// that, neither the main process nor an ended one counts as use.
type process struct {
	atoll.ProcessLayer
	s *sandbox
}

// Attach implements atoll.Process.
func (p *process) Attach(ctx context.Context, a *atoll.Attachment) error {
	defer p.s.l.tracker.beginUse(p.s.ID())()
	return p.ProcessLayer.Attach(ctx, a)
}

// Wait implements atoll.Process.
func (p *process) Wait(ctx context.Context) (atoll.Exit, error) {
	defer p.s.l.tracker.beginUse(p.s.ID())()
	return p.ProcessLayer.Wait(ctx)
}

// Dial implements atoll.Dialer.
func (s *sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	end := s.l.tracker.beginUse(s.ID())
	c, err := atoll.Dial(ctx, s.Sandbox, port)
	if err != nil {
		end()
		return nil, err
	}
	return &conn{c, sync.OnceFunc(end)}, nil
}

// A conn is a connection to a port. The sandbox is in use until it is closed.
type conn struct {
	net.Conn
	end func()
}

func (c *conn) Close() error {
	c.end()
	return c.Conn.Close()
}

// CloseWrite closes the writing side, if the connection can.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return atoll.E("dial", "", atoll.ErrUnsupported, nil)
}

// Files implements atoll.Filer.
func (s *sandbox) Files() atoll.FS {
	return lazyfs.TrackUse(atoll.Files(s.Sandbox), func() (end func()) { return s.l.tracker.beginUse(s.ID()) })
}

var (
	_ atoll.Dialer = (*sandbox)(nil)
	_ atoll.Filer  = (*sandbox)(nil)
)
