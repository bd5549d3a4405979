package dagger

import (
	"os/exec"
	"syscall"
)

// isolateProcess gives cmd a session of its own, without a terminal for prompts, and
// has it killed with the thread that starts it.
func isolateProcess(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}
