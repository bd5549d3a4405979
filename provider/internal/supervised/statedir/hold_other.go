//go:build !linux

package statedir

import "os"

func takeLock(f *os.File) error { return takeLockAlone(f) }

func isLocked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return isLockedAlone(f)
}
