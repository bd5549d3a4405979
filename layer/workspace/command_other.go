//go:build !unix

package workspace

import (
	"os"
	"os/exec"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// isolateCommand does nothing on this platform.
func isolateCommand(*exec.Cmd) {}

// holdClone only checks that dir exists, because this platform cannot lock directories.
func holdClone(dir string) (release func(), err error) {
	_, err = os.Stat(dir)
	return func() {}, err
}

// removeUnheld removes a clone.
func removeUnheld(dir string) error { return fsutil.RemoveAll(dir) }
