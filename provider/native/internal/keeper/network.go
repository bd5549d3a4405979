//go:build linux

package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/gateway"
	"github.com/seed46cd37a8/atoll/internal/usernet"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/sandboxnet"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// A network is a sandbox's network namespace, and the gateway at the other end of its interface, if it has one.
type network struct {
	namespace *os.File
	resolver  string             // address of the DNS server; "" for none
	authority *gateway.Authority // that programs inside have to trust; nil for none
	closers   []func() error
}

// newNetwork makes the network that the sandbox asks for.
func newNetwork(s *supervisor.Sandbox) (_ *network, err error) {
	n := &network{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.closeNetwork())
		}
	}()
	spare := ahead.network
	ahead.network = nil
	if s.Job.Spec.Network.Mode == atoll.NetworkNone {
		if n.namespace = spare; spare == nil {
			n.namespace, err = newNetworkNamespace()
		}
		if err == nil {
			n.closers = append(n.closers, n.namespace.Close)
		}
		return n, err
	}
	_ = spare.Close() // which a nil file survives
	opts, err := sandboxnet.Options(s)
	if err != nil {
		return nil, err
	}
	n.authority = opts.Authority
	ns, err := usernet.NewNamespace(usernet.NamespaceOptions{})
	if err != nil {
		return nil, err
	}
	n.closers = append(n.closers, ns.Close)
	gateway, err := sandboxnet.New(s, opts, ns.Link())
	if err != nil {
		return nil, err
	}
	n.closers = append(n.closers, gateway.Close)
	if n.namespace, err = os.Open(ns.Path()); err != nil {
		return nil, err
	}
	n.closers = append(n.closers, n.namespace.Close)
	n.resolver = usernet.Gateway.Addr().String()
	return n, nil
}

func (n *network) closeNetwork() error {
	var errs []error
	for i := len(n.closers) - 1; i >= 0; i-- {
		errs = append(errs, n.closers[i]())
	}
	n.closers = nil
	return errors.Join(errs...)
}

// onThread calls f on a thread of its own, whose namespaces f may change.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- f()
	}()
	return <-done
}

// newNetworkNamespace returns a network namespace in which only the loopback interface is up.
func newNetworkNamespace() (file *os.File, err error) {
	err = onThread(func() (err error) {
		file, err = enterNetworkNamespace()
		return err
	})
	return file, err
}

// enterNetworkNamespace makes the namespace of newNetworkNamespace, and enters it with this thread.
func enterNetworkNamespace() (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("new network namespace: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return nil, err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return nil, fmt.Errorf("bring lo up: %w", err)
	}
	return os.Open("/proc/thread-self/ns/net")
}

// Dial implements supervisor.Engine.
func (e *engine) Dial(ctx context.Context, port int) (conn net.Conn, err error) {
	if err := e.sandbox.MustRun("dial"); err != nil {
		return nil, err
	}
	for _, address := range []unix.Sockaddr{
		&unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}},
		&unix.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}},
	} {
		var problem error
		if conn, problem = e.network.dialAddress(ctx, address); problem == nil {
			return conn, nil
		}
		err = cmp.Or(err, problem)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return nil, atoll.Errorf("dial", e.sandbox.ID(), atoll.ErrUnavailable, "nothing listens on port %d in the sandbox: %w", port, err)
}

// dialAddress connects to an address of the network namespace.
func (n *network) dialAddress(ctx context.Context, address unix.Sockaddr) (net.Conn, error) {
	family := unix.AF_INET
	if _, ok := address.(*unix.SockaddrInet6); ok {
		family = unix.AF_INET6
	}
	var fd int
	err := onThread(func() (err error) {
		if err := unix.Setns(int(n.namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the sandbox's network: %w", err)
		}
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "connection")
	defer f.Close()
	if err := connectSocket(ctx, f, address); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// connectSocket connects a socket, until ctx ends.
func connectSocket(ctx context.Context, f *os.File, address unix.Sockaddr) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetDeadline(past) })
	defer stop()
	first := true
	var problem error
	err = raw.Write(func(fd uintptr) (done bool) {
		if first {
			first = false
			problem = unix.Connect(int(fd), address)
			return !errors.Is(problem, unix.EINPROGRESS)
		}
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		problem = err
		if err == nil && code != 0 {
			problem = unix.Errno(code)
		}
		return true
	})
	if err == nil {
		err = os.NewSyscallError("connect", problem)
	}
	return err
}
