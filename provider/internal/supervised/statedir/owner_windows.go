package statedir

import (
	"io/fs"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// ownershipFault says why users other than this one can write to the directory; "" if none
// can. The system and its administrators do not count: they can write to everything.
func ownershipFault(path string, info fs.FileInfo) string {
	if !info.IsDir() {
		return "is not a directory"
	}
	return fsutil.Allowed(path, fsutil.MayChange, true)
}

// shelterFault says why others could replace this user's files in the directory; "" if they
// cannot.
func shelterFault(path string, _ fs.FileInfo) string {
	return fsutil.Allowed(path, fsutil.MayReplace, false)
}
