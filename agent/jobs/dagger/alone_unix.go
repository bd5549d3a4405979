//go:build unix && !linux

package dagger

import (
	"os/exec"
	"syscall"
)

// isolateProcess gives cmd a session of its own, without a terminal for prompts.
func isolateProcess(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
