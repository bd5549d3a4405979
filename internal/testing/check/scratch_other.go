//go:build !linux

package main

import (
	"errors"
	"os"
)

const memoryLimit = 0

// mountMemory returns an error: this system has no mount namespaces.
func mountMemory(*scratch) error { return errors.New("only Linux has mount namespaces") }

// removeFolder removes the folder with all that it has.
func (s *scratch) removeFolder() { _ = os.RemoveAll(s.dir) }
