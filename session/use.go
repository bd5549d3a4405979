package session

import (
	"context"
	"io"
	"net"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/idle"
	"github.com/seed46cd37a8/atoll/internal/via"
)

// uses tells when sandboxes were used, of sessions whose provider cannot tell.
type uses struct {
	mu  sync.Mutex
	all map[string]*idle.Use // by sandbox
}

// of is the use of a sandbox, which is noted from now on.
func (u *uses) of(id string) *idle.Use {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = map[string]*idle.Use{}
	}
	if u.all[id] == nil {
		u.all[id] = &idle.Use{}
	}
	return u.all[id]
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

// A sandbox notes that it is used. Commands that run in it need no noting: the
// provider lists them.
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
	return s.SandboxLayer.Process(ctx, id)
}

// Dial implements atoll.Dialer.
func (s *sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	end := s.l.uses.begin(s.ID())
	c, err := s.SandboxLayer.Dial(ctx, port)
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
func (s *sandbox) Files() atoll.FS { return s.noting(s.SandboxLayer.Files()) }

func (s *sandbox) noting(fs atoll.FS) atoll.FS {
	return files{via.FS(func(ctx context.Context, _ string, _ []string, fn func(context.Context, atoll.FS) error) error {
		defer s.l.uses.begin(s.ID())()
		return fn(ctx, fs)
	}), s, fs}
}

// files note that they are used, one that is read until it is closed.
type files struct {
	via.FS
	s     *sandbox
	inner atoll.FS
}

// Sub implements atoll.SubFS.
func (f files) Sub(dir string) atoll.FS { return f.s.noting(atoll.SubFiles(f.inner, dir)) }

// Read implements atoll.FS.
func (f files) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	end := f.s.l.uses.begin(f.s.ID())
	r, info, err := f.FS.Read(ctx, name, offset)
	if err != nil {
		end()
		return nil, info, err
	}
	return &reader{r, sync.OnceFunc(end)}, info, nil
}

type reader struct {
	io.ReadCloser
	end func()
}

func (r *reader) Close() error {
	r.end()
	return r.ReadCloser.Close()
}

var (
	_ atoll.Dialer = (*sandbox)(nil)
	_ atoll.Filer  = (*sandbox)(nil)
	_ atoll.SubFS  = files{}
)
