//go:build unix && !linux

package child

import (
	"os"
	"os/exec"
)

func bindToParent(cmd *exec.Cmd) (kill func(*os.Process), release func(), err error) {
	return watchCommand(cmd)
}
