package workspace

import (
	"os/exec"
	"runtime"
	"syscall"
)

// bound has cmd, which alone has seen to, killed when this process is: nobody would
// look at its limits any more. The kernel takes the end of the thread that starts it
// for that, which is the caller's alone until release.
func bound(cmd *exec.Cmd) (release func()) {
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}
