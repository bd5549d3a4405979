//go:build !linux

package volume

import (
	"os"
	"time"
)

// creationTime returns the modification time of a directory: creation times are not portable.
func creationTime(dir string) time.Time {
	info, err := os.Lstat(dir)
	if err != nil {
		return time.Time{} // just removed
	}
	return info.ModTime()
}
