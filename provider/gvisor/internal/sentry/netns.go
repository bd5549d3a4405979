//go:build linux

package sentry

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/gateway"
	"github.com/seed46cd37a8/atoll/internal/usernet"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/sandboxnet"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// A network is a sandbox's network namespace, and the gateway at the other end of its
// interface, if it has one.
type network struct {
	path      string             // path of the namespace, for gVisor
	resolver  string             // address of the DNS server; "" for none
	authority *gateway.Authority // that programs inside have to trust; nil for none
	closers   []func() error
}

// newNetwork makes the network that the sandbox asks for.
func newNetwork(s *supervisor.Sandbox) (_ *network, err error) {
	n := &network{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if s.Job.Spec.Network.Mode == atoll.NetworkNone {
		ns, err := newNetns()
		if err != nil {
			return nil, err
		}
		n.closers = append(n.closers, ns.Close)
		n.path = fmt.Sprintf("/proc/self/fd/%d", ns.Fd())
		return n, nil
	}
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
	n.path, n.resolver = ns.Path(), usernet.Gateway.Addr().String()
	return n, nil
}

func (n *network) close() error {
	var errs []error
	for i := len(n.closers) - 1; i >= 0; i-- {
		errs = append(errs, n.closers[i]())
	}
	n.closers = nil
	return errors.Join(errs...)
}

// newNetns makes a network namespace in which only the loopback interface is
// up. The namespace lives as long as the file, or a process in it, does.
func newNetns() (*os.File, error) {
	type result struct {
		ns  *os.File
		err error
	}
	done := make(chan result)
	go func() {
		// The thread is never unlocked: it ends with the goroutine, and the
		// namespace it entered does not leak into the scheduler.
		runtime.LockOSThread()
		ns, err := enterNetns()
		done <- result{ns, err}
	}()
	r := <-done
	return r.ns, r.err
}

func enterNetns() (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("new network namespace: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
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
