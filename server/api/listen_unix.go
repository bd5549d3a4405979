//go:build unix

package api

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/socket"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// probeTimeout is the time for an existing socket to accept a connection.
const probeTimeout = 2 * time.Second

// listenUnix creates the socket under a lock on its directory, so that only one of two servers
// replaces a stale socket.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, atoll.E("listen", path, atoll.ErrUnavailable, err)
	}
	defer dir.Close()
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		return nil, atoll.E("listen", path, atoll.ErrUnavailable, err)
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	l, err := bindSocket(ctx, path)
	if err != nil {
		return nil, atoll.E("listen", path, atoll.ErrUnavailable, err)
	}
	fi, err := os.Lstat(path)
	if err != nil {
		l.Close()
		return nil, atoll.E("listen", path, atoll.ErrUnavailable, err)
	}
	return &unixListener{UnixListener: l, path: path, made: fi}, nil
}

// removeStale deletes the socket at path if no process listens on it.
func removeStale(ctx context.Context, path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return atoll.E("listen", path, atoll.ErrUnavailable, err)
	}
	if fi.Mode().Type() != fs.ModeSocket {
		return atoll.Errorf("listen", path, atoll.ErrAlreadyExists, "%s exists and is not a socket", path)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := wire.DialUnix(ctx, path)
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return socketTakenError(path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return atoll.E("listen", path, atoll.ErrUnavailable, err)
	}
	return nil
}

// bindSocket creates the socket. On Linux the socket gets the mode of the descriptor, so other
// users cannot connect at any moment. On other systems the directory protects it until Chmod.
func bindSocket(ctx context.Context, path string) (*net.UnixListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), 0o600) }) // the Chmod below covers other systems
	}}
	var l net.Listener
	err := socket.Short(path, func(short string) (err error) {
		l, err = lc.Listen(ctx, "unix", short)
		return err
	})
	if err != nil {
		return nil, err
	}
	sock := l.(*net.UnixListener)
	sock.SetUnlinkOnClose(false) // its name may be the short path
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return sock, nil
}

// A unixListener deletes its socket on Close.
type unixListener struct {
	*net.UnixListener
	path string
	made fs.FileInfo
}

func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func (l *unixListener) Accept() (net.Conn, error) {
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return wire.UnixConn{UnixConn: conn}, nil
}

func (l *unixListener) Close() error {
	err := l.UnixListener.Close()
	if fi, statErr := os.Lstat(l.path); err == nil && statErr == nil && os.SameFile(fi, l.made) {
		_ = os.Remove(l.path) // fails if the socket was already removed
	}
	return err
}

// hasPending reports whether a client has made a connection that l has not accepted yet.
func hasPending(l net.Listener) bool {
	c, ok := l.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	pending := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0) // does not block
		pending = err == nil && n == 1
	})
	return err == nil && pending
}
