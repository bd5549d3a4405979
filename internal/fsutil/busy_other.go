//go:build !windows

package fsutil

import "os"

// Rename is os.Rename, and works also while other processes have the files open.
func Rename(from, to string) error { return os.Rename(from, to) }

// ReadFile is os.ReadFile, and works also while another process replaces the file.
func ReadFile(path string) ([]byte, error) { return os.ReadFile(path) }
