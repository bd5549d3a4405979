//go:build unix

package dagger

import (
	"os"
	"syscall"
)

// killProcess ends the CLI and its child processes.
func killProcess(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) } // it may have ended
