package session

import (
	"context"
	"net"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/idletracker"
	"github.com/seed46cd37a8/atoll/internal/lazyfs"
)

// uses tells when sandboxes were used, of sessions whose provider cannot tell.
type uses struct {
	mu    sync.Mutex
	all   map[string]*idletracker.Use // by sandbox
	fresh bool                        // one has been added
}

// of is the use of a sandbox, which is noted from now on.
func (u *uses) of(id string) *idletracker.Use {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = map[string]*idletracker.Use{}
	}
	if u.all[id] == nil {
		u.all[id], u.fresh = &idletracker.Use{}, true
	}
	return u.all[id]
}

// added reports whether one has been added since it was last asked.
func (u *uses) added() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	fresh := u.fresh
	u.fresh = false
	return fresh
}

func (u *uses) forget(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.all, id)
}

// begin notes that the sandbox is used, until the result is called.
func (u *uses) begin(id string) (end func()) {
	u.mu.Lock()
	use := u.all[id]
	u.mu.Unlock()
	if use == nil {
		return func() {}
	}
	return use.Begin()
}

// A sandbox notes that it is used. Commands that Exec starts in it need no noting:
// the provider lists them.
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
	defer s.l.uses.begin(s.ID())()
	return s.SandboxLayer.Exec(ctx, cmd)
}

// Process implements atoll.Sandbox.
func (s *sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	defer s.l.uses.begin(s.ID())()
	p, err := s.SandboxLayer.Process(ctx, id)
	if err != nil {
		return nil, err
	}
	return &process{atoll.ProcessLayer{Process: p}, s}, nil
}

// A process notes who is attached to it or waits for it: it may be the main one, which
// by itself is no use, or have ended.
type process struct {
	atoll.ProcessLayer
	s *sandbox
}

// Attach implements atoll.Process.
func (p *process) Attach(ctx context.Context, a *atoll.Attachment) error {
	defer p.s.l.uses.begin(p.s.ID())()
	return p.ProcessLayer.Attach(ctx, a)
}

// Wait implements atoll.Process.
func (p *process) Wait(ctx context.Context) (atoll.Exit, error) {
	defer p.s.l.uses.begin(p.s.ID())()
	return p.ProcessLayer.Wait(ctx)
}

// Dial implements atoll.Dialer.
func (s *sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	end := s.l.uses.begin(s.ID())
	c, err := atoll.Dial(ctx, s.Sandbox, port)
	if err != nil {
		end()
		return nil, err
	}
	return &conn{c, sync.OnceFunc(end)}, nil
}

// A conn is one to a port of a sandbox in use.
type conn struct {
	net.Conn
	end func()
}

func (c *conn) Close() error {
	c.end()
	return c.Conn.Close()
}

// CloseWrite tells the other end that nothing more comes, as the connection can.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return atoll.E("dial", "", atoll.ErrUnsupported, nil)
}

// Files implements atoll.Filer.
func (s *sandbox) Files() atoll.FS {
	return lazyfs.TrackUse(atoll.Files(s.Sandbox), func() (end func()) { return s.l.uses.begin(s.ID()) })
}

var (
	_ atoll.Dialer = (*sandbox)(nil)
	_ atoll.Filer  = (*sandbox)(nil)
)
