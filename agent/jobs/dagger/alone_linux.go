package dagger

import (
	"os/exec"
	"syscall"
)

// alone gives cmd a session of its own, which has no terminal to ask at, and has it killed
// with the thread that starts it.
func alone(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}
