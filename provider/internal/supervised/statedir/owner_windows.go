package statedir

import (
	"io/fs"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// ownershipFault says why the directory is not one that this user alone can write to; ""
// if it is. The system and its administrators can write to all.
func ownershipFault(path string, info fs.FileInfo) string {
	if !info.IsDir() {
		return "is not a directory"
	}
	return fsutil.Allowed(path, fsutil.MayChange, true)
}

// shelterFault says why others could replace what this user has in the directory;
// "" if they cannot.
func shelterFault(path string, _ fs.FileInfo) string {
	return fsutil.Allowed(path, fsutil.MayReplace, false)
}
