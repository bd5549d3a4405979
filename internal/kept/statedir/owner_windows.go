package statedir

import (
	"io/fs"

	"github.com/seed46cd37a8/atoll/internal/disk"
)

// owned says why the directory is not one that this user alone can write to; ""
// if it is. The system and its administrators can write to all.
func owned(path string, info fs.FileInfo) string {
	if !info.IsDir() {
		return "is not a directory"
	}
	return disk.Allowed(path, disk.MayChange, true)
}

// sheltering says why others could replace what this user has in the directory;
// "" if they cannot.
func sheltering(path string, _ fs.FileInfo) string { return disk.Allowed(path, disk.MayReplace, false) }
