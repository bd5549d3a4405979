//go:build unix

package supervised

import (
	"errors"
	"syscall"
)

// isConnCut reports whether err is that of a connection whose other end has died.
func isConnCut(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// volumeOwner returns the owner of a data volume, which its sandbox's first start
// gave to the default user; -1 if that is not known.
func volumeOwner(volume string) (uid, gid int) {
	var st syscall.Stat_t
	if err := syscall.Stat(volume, &st); err != nil {
		return -1, -1
	}
	return int(st.Uid), int(st.Gid)
}
