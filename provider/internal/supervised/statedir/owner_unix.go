//go:build unix

package statedir

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// ownershipFault says why users other than this one can write to the directory; "" if none
// can.
func ownershipFault(_ string, info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.IsDir():
		return "is not a directory"
	case int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("belongs to user %d", st.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return "is writable by others"
	}
	return ""
}

// shelterFault says why others could replace this user's files in the directory; "" if it
// is not writable by everyone, or sticky, so that each user can only move their own files.
// The permissions of groups are the administrator's business.
func shelterFault(_ string, info fs.FileInfo) string {
	if info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return "is writable by everyone"
	}
	return ""
}
