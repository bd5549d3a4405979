package usernet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

// Interface is the name of the network interface inside a Namespace.
const Interface = "eth0"

const upTimeout = 10 * time.Second

// NamespaceOptions configure a Namespace. The zero value is good.
type NamespaceOptions struct {
	// MTU of the link; 0 means DefaultMTU. A Network over it needs the same.
	MTU int
	// Device selects how the link is made.
	Device Device
}

// A Device is a way to access the frames of a namespace's interface.
type Device string

const (
	// DeviceAuto is DeviceTAP if /dev/net/tun can be opened, else DevicePacket.
	DeviceAuto Device = ""
	// DeviceTAP is a TAP device, whose far end is a file descriptor.
	DeviceTAP Device = "tap"
	// DevicePacket is a pair of veth interfaces with a packet socket on the far
	// one. It needs no device node.
	DevicePacket Device = "packet"
)

// A Namespace is a network namespace with a loopback interface and one more, whose other end is
// Link: the only way out. Both interfaces are up, with the Guest addresses and a default route to
// the Gateway.
//
// It lives as long as the Namespace is open or a process is in it, and leaves nothing behind.
type Namespace struct {
	file *os.File
	link io.ReadWriteCloser
}

// NewNamespace creates a namespace owned by the user namespace of the process, where it needs
// CAP_SYS_ADMIN and CAP_NET_ADMIN (and CAP_NET_RAW for DevicePacket). Without them, or without a
// device, it fails with ErrUnavailable and says what to do.
func NewNamespace(opts NamespaceOptions) (*Namespace, error) {
	setDefault(&opts.MTU, DefaultMTU)
	ns := &Namespace{}
	if err := onThread(func() error { return ns.setUp(opts) }); err != nil {
		return nil, errors.Join(err, ns.Close(), closeLink(ns.link))
	}
	return ns, nil
}

// setUp creates the namespace, its device and its interfaces, on a thread of its own.
func (ns *Namespace) setUp(opts NamespaceOptions) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return atoll.Errorf("network", "", atoll.ErrUnavailable,
			"make a network namespace: %w (needs root or a user namespace: see /proc/sys/user/max_net_namespaces and, on Ubuntu, kernel.apparmor_restrict_unprivileged_userns)", err)
	}
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return atoll.E("network", "", atoll.ErrUnavailable, err)
	}
	ns.file = file
	if err := ns.openDevice(opts); err != nil {
		return atoll.E("network", "", atoll.ErrUnavailable, err)
	}
	if err := configureInterfaces(opts.MTU); err != nil {
		return atoll.E("network", "", atoll.ErrUnavailable, fmt.Errorf("set up the sandbox's interface: %w", err))
	}
	return nil
}

// openDevice creates the interface and its far end.
func (ns *Namespace) openDevice(opts NamespaceOptions) (err error) {
	switch opts.Device {
	case DeviceTAP:
		ns.link, err = openTAP()
		return err
	case DevicePacket:
		ns.link, err = openPacket(ns.file, opts.MTU)
		return err
	case DeviceAuto:
		if ns.link, err = openTAP(); err == nil {
			return nil
		}
		var err2 error
		if ns.link, err2 = openPacket(ns.file, opts.MTU); err2 != nil {
			return fmt.Errorf("%w (load it with modprobe tun, or allow it: chmod 666 /dev/net/tun, docker run --device /dev/net/tun); without it: %w", err, err2)
		}
		return nil
	}
	return fmt.Errorf("device %q: use tap or packet", opts.Device)
}

// configureInterfaces gives the namespace's interfaces their addresses and routes, and brings them
// up.
func configureInterfaces(mtu int) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("lo up: %w", err)
	}
	eth, err := netlink.LinkByName(Interface)
	if err != nil {
		return err
	}
	for what, err := range map[string]error{
		"mtu":         netlink.LinkSetMTU(eth, mtu),
		"mac address": netlink.LinkSetHardwareAddr(eth, GuestMAC),
	} {
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if err := netlink.AddrAdd(eth, &netlink.Addr{IPNet: ipNet(Guest)}); err != nil {
		return fmt.Errorf("address: %w", err)
	}
	if err := netlink.LinkSetUp(eth); err != nil {
		return fmt.Errorf("up: %w", err)
	}
	if err := addGateway(eth, Gateway.Addr()); err != nil {
		return err
	}
	if err := awaitReady(Interface, func() (bool, error) { return isUp(eth.Attrs().Index) }); err != nil {
		return err
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return nil // the machine has no IPv6
	}
	// Nobody else is on the link, so there is no duplicate to look for.
	if err := netlink.AddrAdd(eth, &netlink.Addr{IPNet: ipNet(Guest6), Flags: unix.IFA_F_NODAD}); err != nil {
		return fmt.Errorf("address: %w", err)
	}
	if err := addGateway(eth, Gateway6.Addr()); err != nil {
		return err
	}
	return awaitReady(Guest6.String(), func() (bool, error) { return isLocal(Guest6.Addr()) })
}

// isUp reports whether the kernel has seen that the interface is up.
func isUp(index int) (bool, error) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return false, err
	}
	s := l.Attrs().OperState
	return s == netlink.OperUp || s == netlink.OperUnknown, nil
}

// isLocal reports whether packets to addr are local to the namespace.
func isLocal(addr netip.Addr) (bool, error) {
	routes, err := netlink.RouteGet(addr.AsSlice())
	if err != nil {
		return false, err
	}
	return len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL, nil
}

// awaitReady returns when ok reports true. The kernel brings interfaces up in the background, and
// packets would be lost at first.
func awaitReady(what string, ok func() (bool, error)) error {
	for deadline := time.Now().Add(upTimeout); ; time.Sleep(time.Millisecond) {
		if done, err := ok(); done || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not up after %s", what, upTimeout)
		}
	}
}

// addGateway sets the default route, and makes the gateway a permanent neighbour.
func addGateway(eth netlink.Link, gw netip.Addr) error {
	index := eth.Attrs().Index
	neigh := &netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, IP: gw.AsSlice(), HardwareAddr: GatewayMAC}
	if err := netlink.NeighSet(neigh); err != nil {
		return fmt.Errorf("neighbour: %w", err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index, Gw: gw.AsSlice()}); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Link returns the far end of the namespace's interface, one Ethernet frame for each Read and
// Write. Pass it to New, which then owns it; the interface is removed when it is closed.
func (ns *Namespace) Link() io.ReadWriteCloser { return ns.link }

// Path returns the namespace's path for other processes that can see this one, and for an OCI
// runtime spec. It is valid until Close.
func (ns *Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.file.Fd()) }

// onThread calls f on a thread of its own, which ends with it. It never uses the process's first
// thread: that cannot end, so it would stay in a namespace for ever.
func onThread(f func() error) error {
	errc := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			errc <- f()
			return
		}
		defer runtime.UnlockOSThread()
		errc <- onThread(f) // on another thread, since this one is taken
	}()
	return <-errc
}

// Close releases the namespace. It does not close the link.
func (ns *Namespace) Close() error {
	if ns.file == nil {
		return nil
	}
	return ns.file.Close()
}

func closeLink(l io.Closer) error {
	if l == nil {
		return nil
	}
	return l.Close()
}
