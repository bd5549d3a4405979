//go:build !linux

package statedir

import "os"

func takeLock(f *os.File) error { return takeLockAlone(f) }
func isLocked(f *os.File) bool  { return isLockedAlone(f) }
