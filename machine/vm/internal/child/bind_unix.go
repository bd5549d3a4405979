//go:build unix && !linux

package child

import (
	"os"
	"os/exec"
)

func bind(cmd *exec.Cmd) (kill func(*os.Process), release func(), err error) {
	return watched(cmd)
}
