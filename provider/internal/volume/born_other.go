//go:build !linux

package volume

import (
	"os"
	"time"
)

// born is when a directory was last changed; the system does not tell more.
func born(dir string) time.Time {
	info, err := os.Lstat(dir)
	if err != nil {
		return time.Time{} // just removed
	}
	return info.ModTime()
}
