//go:build unix && !linux

package dagger

import (
	"os/exec"
	"syscall"
)

// alone gives cmd a session of its own, which has no terminal to ask at.
func alone(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
