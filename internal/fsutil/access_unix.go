//go:build unix

package fsutil

import (
	"io/fs"
	"os"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// ownAlone reports, as an error, who besides this user and root has a permission in denied.
func ownAlone(op, path string, fi fs.FileInfo, denied fs.FileMode) error {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() && st.Uid != 0 {
		return atoll.Errorf(op, path, atoll.ErrDenied, "it belongs to user %d, who can read and change it: delete it, or make it your own", st.Uid)
	}
	if perm := fi.Mode().Perm(); perm&denied != 0 {
		what := "change"
		if denied&0o044 != 0 {
			what = "read"
		}
		return atoll.Errorf(op, path, atoll.ErrDenied, "others may %s it (mode %04o): chmod %o %s", what, perm, perm&^denied, path)
	}
	return nil
}
