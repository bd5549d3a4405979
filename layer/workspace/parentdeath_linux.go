package workspace

import (
	"os/exec"
	"runtime"
	"syscall"
)

// killWithParent makes the kernel kill cmd if this process dies, because nothing would enforce
// the limits of cmd then. cmd must come from isolateCommand. The kernel acts on the end of the
// thread that starts cmd, so the calling goroutine keeps that thread until release.
func killWithParent(cmd *exec.Cmd) (release func()) {
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}
