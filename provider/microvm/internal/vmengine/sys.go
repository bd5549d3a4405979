//go:build unix

package vmengine

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/socket"
)

// newCard returns the two ends of a network, with room for frames: ours, and that of a machine's
// card.
func newCard() (ours, theirs *os.File, err error) {
	ours, theirs, err = socket.Files(unix.SOCK_DGRAM)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range []*os.File{ours, theirs} { // a frame is 64 KiB
		for _, opt := range []int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
			_ = setSockOpt(f, opt, 4<<20) // the kernel limits it
		}
	}
	return ours, theirs, nil
}

// setSockOpt sets an option of a socket without making the file blocking, as its Fd would.
func setSockOpt(f *os.File, opt, value int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, opt, value) })
}
