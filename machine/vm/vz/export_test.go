package vz

import (
	"io"
	"path/filepath"

	"github.com/seed46cd37a8/atoll/machine/vm"
)

// Args returns vfkit's arguments for a machine.
func Args(h *vm.Hardware) []string {
	m := &machine{hardware: *h, dir: filepath.Join(h.Dir, baseDir)}
	return m.buildArgs()
}

// Follow copies a file to to until stop is called.
func Follow(path string, to io.WriteCloser) (stop func()) { return followFile(path, to).close }
