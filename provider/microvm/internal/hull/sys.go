//go:build unix

package hull

import (
	"os"

	"golang.org/x/sys/unix"
)

// ends are the files of a pair of sockets, with room for frames.
func ends(fds [2]int) (ours, theirs *os.File) {
	for _, fd := range fds { // a frame is 64 KiB
		for _, opt := range []int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, 4<<20) // as much as is allowed
		}
	}
	return os.NewFile(uintptr(fds[0]), "network"), os.NewFile(uintptr(fds[1]), "card")
}
