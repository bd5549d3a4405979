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

// The name of a network card that a Computer creates, and the device that creates it.
const (
	cardName = "eth0"
	tunName  = "net/tun"
)

// A tapCard is a network card whose other end is a connection to vm.PortNetwork.
type tapCard struct {
	card *os.File
	used sync.Mutex // by a connection
}

// plugIn creates the network card of a Computer, and lets hosts dial it.
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
	if err := n.configureCard(link); err != nil {
		return err
	}
	w := &tapCard{card: card}
	c.handlePort(vm.PortNetwork, w.serveFrames)
	return nil
}

// openCard creates a TAP device, which is removed when the file is closed.
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
	return os.NewFile(uintptr(fd), path), nil // not earlier: a file without a card cannot be polled
}

// maxFrame is the longest possible frame, in bytes.
const maxFrame = 1<<16 - 1

// serveFrames copies frames both ways until conn ends. It hangs up a second connection meanwhile.
func (w *tapCard) serveFrames(conn net.Conn) {
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
				return // the deadline was set below, or the Computer ends
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
		_, _ = w.card.Write(b[:n]) // frames that the kernel does not accept are lost, as on any wire
	}
	_ = w.card.SetReadDeadline(time.Unix(1, 0))
	<-out
	_ = w.card.SetReadDeadline(time.Time{})
}
