package usernet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// farInterface is the far end of the pair. It has no address: the kernel treats frames that arrive
// there as foreign, and the packet socket gets them all.
const farInterface = "far0"

// packetBuffer is the requested buffer size on both sides of the socket; without privilege on the
// computer the kernel gives less.
const packetBuffer = 4 << 20

// openPacket creates a veth pair, whose near end is Interface in the namespace of the thread, and
// opens a packet socket on its far end. That is in a namespace of its own, out of the sandbox's
// sight, which the socket holds.
func openPacket(near *os.File, mtu int) (link io.ReadWriteCloser, err error) {
	err = onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		link, err = openFar(near, mtu)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := noChecksumOffload(Interface); err != nil {
		return nil, errors.Join(fmt.Errorf("turn checksum offload off: %w", err), link.Close())
	}
	return link, nil
}

func openFar(near *os.File, mtu int) (io.ReadWriteCloser, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = farInterface, mtu
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: Interface, PeerNamespace: netlink.NsFd(near.Fd())}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("make a veth pair: %w", err)
	}
	far, err := netlink.LinkByName(farInterface)
	if err != nil {
		return nil, err
	}
	// Without this the kernel looks for IPv6 routers at the far end; it may be
	// read-only, and nothing depends on it.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+farInterface+"/disable_ipv6", []byte("1"), 0)
	if err := netlink.LinkSetUp(far); err != nil {
		return nil, err
	}
	return packetSocket(far.Attrs().Index)
}

// noChecksumOffload makes the kernel fill in checksums and cut large packets
// before they reach the pair, whose frames would otherwise be incomplete.
func noChecksumOffload(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return ethtoolSet(fd, name, unix.ETHTOOL_STXCSUM, 0)
}

func packetSocket(index int) (io.ReadWriteCloser, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	for opt, force := range map[int]int{unix.SO_RCVBUF: unix.SO_RCVBUFFORCE, unix.SO_SNDBUF: unix.SO_SNDBUFFORCE} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, packetBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, packetBuffer)
		}
	}
	// The socket must not receive its own frames. And it must not wait until the kernel sees that
	// the pair is up, which may take a second, during which the queue that is bypassed here drops
	// everything.
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1))
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: toNetworkOrder(unix.ETH_P_ALL), Ifindex: index})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("set up a packet socket: %w", err)
	}
	return os.NewFile(uintptr(fd), "packet socket"), nil
}

// toNetworkOrder returns v as it lies in memory in network order.
func toNetworkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)})
}
