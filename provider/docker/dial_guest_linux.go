package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/socket"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// dialGuest connects to the guest of a container without the engine, where this
// program may: as root on the engine's machine. The guest listens in its
// container's network namespace, which is entered for that moment. Whether it is
// that sandbox's guest is for the caller to ask it: the engine may be elsewhere,
// and the process with that PID here another.
func (p *Provider) dialGuest(ctx context.Context, pid int) (net.Conn, error) {
	path, local := strings.CutPrefix(p.engine.DaemonHost(), "unix://")
	if !local || p.opts.Dial != nil || pid <= 0 || os.Geteuid() != 0 {
		return nil, errors.ErrUnsupported
	}
	daemon, err := daemonPID(ctx, path)
	if err != nil {
		return nil, err
	}
	// As the daemon sees it, which may be in another PID namespace.
	ns := fmt.Sprintf("/proc/%d/root/proc/%d/ns/net", daemon, pid)
	for delay := time.Millisecond; ; delay = min(2*delay, 20*time.Millisecond) {
		conn, err := dialNamespace(ns)
		if err == nil {
			if err = guest.Greet(conn); err != nil {
				conn.Close()
				return nil, err
			}
			return conn, nil
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return nil, err
		}
		select { // it was just started
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(delay):
		}
	}
}

// daemonPID is the PID of the process that listens on a socket.
func daemonPID(ctx context.Context, path string) (int, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	pid, err := socket.Peer(conn.(*net.UnixConn))
	if err == nil && pid <= 0 {
		err = errors.New("the engine's process cannot be seen from here")
	}
	return pid, err
}

// dialNamespace connects to the guest in the network namespace ns, which is not that of
// this program. It does not block.
func dialNamespace(ns string) (conn *net.UnixConn, err error) {
	theirs, err := os.Open(ns)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	runtime.LockOSThread()
	ours, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer ours.Close()
	if isSameFile(ours, theirs) {
		runtime.UnlockOSThread()
		return nil, errors.New("it has the host's network, or is another process")
	}
	err = unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET)
	if err == nil {
		conn, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: guest.Socket, Net: "unix"})
		if back := unix.Setns(int(ours.Fd()), unix.CLONE_NEWNET); back != nil {
			if conn != nil {
				conn.Close()
			}
			// The thread stays locked, so that it ends with its goroutine.
			return nil, errors.Join(err, back)
		}
	}
	runtime.UnlockOSThread()
	return conn, err
}

func isSameFile(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}
