package guest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/machine/vm"
)

// What a network card that a Computer makes is called, and the device that it is made with.
const (
	cardName = "eth0"
	tunName  = "net/tun"
)

// A wire is a network card whose other end is whoever has dialled vm.PortNetwork.
type wire struct {
	card *os.File
	used sync.Mutex // by a connection
}

// plugIn makes the network card of a Computer, and has hosts dial it.
func plugIn(c *Computer, n *Interface) error {
	card, err := openCard(filepath.Join(newRoot, "dev", tunName))
	if err != nil {
		return err
	}
	link, err := netlink.LinkByName(cardName)
	if err != nil {
		return err
	}
	mac, err := net.ParseMAC(n.MAC)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
		return fmt.Errorf("MAC %s: %w", mac, err)
	}
	if err := n.apply(link); err != nil {
		return err
	}
	w := &wire{card: card}
	c.listen(vm.PortNetwork, w.serve)
	return nil
}

// openCard makes a TAP device, which goes when the file is closed.
func openCard(path string) (*os.File, error) {
	const flags = unix.O_RDWR | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Open(path, flags, 0)
	if errors.Is(err, unix.ENODEV) {
		if err := loadModule("tun"); err != nil {
			return nil, err
		}
		fd, err = unix.Open(path, flags, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	req, err := unix.NewIfreq(cardName)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make a network card with %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil // not before: what is no card yet cannot be polled
}

// maxFrame is how long a frame can be.
const maxFrame = 1<<16 - 1

// serve has frames go both ways until conn ends. A second one is hung up meanwhile.
func (w *wire) serve(conn net.Conn) {
	defer conn.Close()
	if !w.used.TryLock() {
		return
	}
	defer w.used.Unlock()
	far := vm.Frames(conn)
	out := make(chan struct{})
	go func() {
		defer close(out)
		defer conn.Close()
		for b := make([]byte, maxFrame); ; {
			n, err := w.card.Read(b)
			if err != nil {
				return // stop has come, or the Computer ends
			}
			if _, err := far.Write(b[:n]); err != nil {
				return
			}
		}
	}()
	for b := make([]byte, maxFrame); ; {
		n, err := far.Read(b)
		if err != nil {
			break
		}
		_, _ = w.card.Write(b[:n]) // what the kernel does not take is lost, as on any wire
	}
	_ = w.card.SetReadDeadline(time.Unix(1, 0))
	<-out
	_ = w.card.SetReadDeadline(time.Time{})
}
