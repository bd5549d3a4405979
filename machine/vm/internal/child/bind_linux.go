package child

import (
	"os"
	"os/exec"
	"syscall"
)

// bindToParent makes cmd end with the thread that starts it.
func bindToParent(cmd *exec.Cmd) (kill func(*os.Process), release func(), err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return func(p *os.Process) { _ = p.Kill() }, func() {}, nil // it may have ended
}
