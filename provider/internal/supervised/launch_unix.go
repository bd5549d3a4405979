//go:build unix

package supervised

import (
	"errors"
	"syscall"
)

// isConnCut reports whether err comes from a connection whose other end has died.
func isConnCut(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// volumeOwner returns the owner of a data volume, which the first start of its sandbox gave
// to the default user; -1 if it cannot be read.
func volumeOwner(volume string) (uid, gid int) {
	var st syscall.Stat_t
	if err := syscall.Stat(volume, &st); err != nil {
		return -1, -1
	}
	return int(st.Uid), int(st.Gid)
}
