//go:build unix

package fsutil

import (
	"io/fs"
	"os"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// checkAccess returns an error that names the owner, if that is neither this user nor root,
// or the permission in denied that others have.
func checkAccess(op, path string, fi fs.FileInfo, denied fs.FileMode) error {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() && st.Uid != 0 {
		return atoll.Errorf(op, path, atoll.ErrDenied, "it belongs to user %d and that user can read and change it: delete it, or chown it to your user", st.Uid)
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
