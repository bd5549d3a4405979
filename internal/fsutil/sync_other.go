//go:build !windows

package fsutil

import (
	"cmp"
	"os"
)

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return cmp.Or(f.Sync(), f.Close())
}
