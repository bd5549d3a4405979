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

	"github.com/seed46cd37a8/atoll/internal/retry"
	"github.com/seed46cd37a8/atoll/internal/socket"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// dialGuest connects to the guest of a container directly, without the engine. That takes root
// on the engine's machine; otherwise the error is ErrUnsupported. The guest listens in its
// container's network namespace, which one thread enters for a moment. The caller must verify
// that it has reached the right guest: the engine may run elsewhere, and that PID here may be
// another process.
func (p *Provider) dialGuest(ctx context.Context, pid int) (net.Conn, error) {
	path, local := strings.CutPrefix(p.engine.DaemonHost(), "unix://")
	if !local || p.opts.Dial != nil || pid <= 0 || os.Geteuid() != 0 {
		return nil, errors.ErrUnsupported
	}
	daemon, err := daemonPID(ctx, path)
	if err != nil {
		return nil, err
	}
	// the path as the daemon sees it: it may be in another PID namespace
	ns := fmt.Sprintf("/proc/%d/root/proc/%d/ns/net", daemon, pid)
	var conn *net.UnixConn
	if err := dialPolicy.Do(ctx, func() (err error) { conn, err = dialNamespace(ns); return err }); err != nil {
		return nil, err
	}
	if err = guest.Greet(conn); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// dialPolicy retries while a guest that has just started does not listen yet.
var dialPolicy = retry.Policy{
	First: time.Millisecond, Max: 20 * time.Millisecond,
	If: func(err error) bool { return errors.Is(err, unix.ECONNREFUSED) },
}

// daemonPID returns the PID of the process that listens on a Unix socket.
func daemonPID(ctx context.Context, path string) (int, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	pid, err := socket.Peer(conn.(*net.UnixConn))
	if err == nil && pid <= 0 {
		err = errors.New("cannot see the engine's process: it is in another PID namespace")
	}
	return pid, err
}

// dialNamespace connects to the guest in the network namespace ns. It fails if that is this
// program's own namespace. It does not block.
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
		return nil, errors.New("the process has the host's network, so it is no guest")
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
