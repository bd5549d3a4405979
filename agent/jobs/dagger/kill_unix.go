//go:build unix

package dagger

import (
	"os"
	"syscall"
)

// kill ends the CLI and what it has started.
func kill(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) } // it may have ended
