//go:build !unix

package workspace

import (
	"os"
	"os/exec"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// alone leaves cmd as it is.
func alone(*exec.Cmd) {}

// hold only looks: directories cannot be locked here.
func hold(dir string) (release func(), err error) {
	_, err = os.Stat(dir)
	return func() {}, err
}

// removeUnheld removes a clone.
func removeUnheld(dir string) error { return fsutil.RemoveAll(dir) }
