//go:build !unix

package objectstore

import "os"

const (
	nonblock  = 0
	locksWork = false
)

func tryLock(*os.File) error { return nil }

func unlockFile(file *os.File) { _ = file.Close() }

// syncDir does nothing: directories cannot be synchronized here.
func syncDir(*os.File) error { return nil }
