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

// packetInterface is the far end of the pair. It has no address: the kernel
// sees the frames that come to it as somebody else's, the packet socket sees
// them all.
const packetInterface = "atoll0"

// packetBuffer is asked for on both sides of the socket; without privilege on
// the machine the kernel gives less.
const packetBuffer = 4 << 20

// openPacket makes the veth pair in the thread's namespace and opens a packet
// socket on its far end.
func openPacket(mtu int) (io.ReadWriteCloser, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = Interface, mtu
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: packetInterface}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("make a veth pair: %w", err)
	}
	peer, err := netlink.LinkByName(packetInterface)
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkSetMTU(peer, mtu); err != nil {
		return nil, err
	}
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+packetInterface+"/disable_ipv6", []byte("1"), 0)
	if err := netlink.LinkSetUp(peer); err != nil {
		return nil, err
	}
	if err := noChecksumOffload(Interface); err != nil {
		return nil, fmt.Errorf("turn checksum offload off: %w", err)
	}
	return packetSocket(peer.Attrs().Index)
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
	// What we send ourselves must not come back as received. And it must not
	// wait for the kernel to see that the pair is up, which may take it a
	// second, during which the queue that is bypassed here drops all.
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1))
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: index})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("set up a packet socket: %w", err)
	}
	return os.NewFile(uintptr(fd), "packet socket"), nil
}

// htons returns v as it lies in memory in network order.
func htons(v uint16) uint16 { return binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)}) }
