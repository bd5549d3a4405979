package vz

import (
	"io"
	"path/filepath"

	"github.com/seed46cd37a8/atoll/machine/vm"
)

// Args are those of vfkit for a machine.
func Args(h *vm.Hardware) []string {
	m := &machine{h: *h, dir: filepath.Join(h.Dir, baseDir)}
	return m.args()
}

// Follow follows a file until it is told to stop.
func Follow(path string, to io.WriteCloser) (stop func()) { return follow(path, to).close }
