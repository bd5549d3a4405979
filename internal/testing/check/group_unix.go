//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// startGroup makes the command the leader of a process group, which a cancel interrupts as a whole, as a
// terminal does: go test does not pass a signal on to the programs that it runs.
func startGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
}
