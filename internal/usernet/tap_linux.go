package usernet

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// openTAP creates the TAP device Interface in the thread's namespace. It is removed when the file
// is closed.
func openTAP() (io.ReadWriteCloser, error) {
	const name = "/dev/net/tun"
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	req, err := unix.NewIfreq(Interface)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make a tap device with %s: %w", name, err)
	}
	// Not before TUNSETIFF: a tun file that has no device yet cannot be polled.
	return os.NewFile(uintptr(fd), name), nil
}
