//go:build unix

package disk

import (
	"io/fs"
	"syscall"
)

// ownerOf is the user that a file belongs to.
func ownerOf(fi fs.FileInfo) (uid int, known bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
