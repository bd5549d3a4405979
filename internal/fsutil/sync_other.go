//go:build !windows

package fsutil

import (
	"cmp"
	"os"
)

// SyncFile waits until a file, or a directory, is on disk.
func SyncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return cmp.Or(f.Sync(), f.Close())
}
