//go:build !windows

package fsutil

import "os"

// Rename is os.Rename, also while others look at what is renamed or replaced.
func Rename(from, to string) error { return os.Rename(from, to) }

// ReadFile is os.ReadFile, also of a file that is just being replaced.
func ReadFile(path string) ([]byte, error) { return os.ReadFile(path) }
