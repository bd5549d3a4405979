//go:build !linux

package statedir

import "os"

func hold(f *os.File) error { return holdAlone(f) }
func held(f *os.File) bool  { return heldAlone(f) }
