//go:build unix

package statedir

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// ownershipFault says why the directory is not one that this user alone can write to; ""
// if it is.
func ownershipFault(_ string, info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.IsDir():
		return "is not a directory"
	case int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("belongs to user %d", st.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return "can be written to by others"
	}
	return ""
}

// shelterFault says why others could replace what this user has in the directory;
// "" if it is not everyone's to write to, or one where each can only move his
// own. What groups may do is up to those who manage the machine.
func shelterFault(_ string, info fs.FileInfo) string {
	if info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return "can be written to by everyone"
	}
	return ""
}
