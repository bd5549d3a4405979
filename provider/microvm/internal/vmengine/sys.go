//go:build unix

package vmengine

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/socket"
)

// card returns the ends of a network, with room for frames: ours, and that of a machine's
// card.
func card() (ours, theirs *os.File, err error) {
	ours, theirs, err = socket.Files(unix.SOCK_DGRAM)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range []*os.File{ours, theirs} { // a frame is 64 KiB
		for _, opt := range []int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
			_ = setsockopt(f, opt, 4<<20) // as much as is allowed
		}
	}
	return ours, theirs, nil
}

// setsockopt does not have the file block, as its Fd would.
func setsockopt(f *os.File, opt, value int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, opt, value) })
}
