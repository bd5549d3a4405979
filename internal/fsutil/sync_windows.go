package fsutil

import (
	"cmp"
	"os"
)

// SyncFile flushes a file, which Windows allows only with write access. It does nothing for
// directories.
func SyncFile(path string) error {
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return cmp.Or(f.Sync(), f.Close())
}
