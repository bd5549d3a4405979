//go:build unix

package main

import (
	"os"
	"syscall"
)

// openUnblocked opens a file for reading, and does not wait if a program replaces it by a named pipe.
func openUnblocked(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
}
