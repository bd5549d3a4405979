package statedir

import (
	"context"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// zombie is the state of a process that has ended and whose parent has not waited for it
// yet.
const zombie = 5

// Identify returns the identity of a running process.
func Identify(pid int) (Identity, error) {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err == unix.EIO || err == unix.ESRCH || err == nil && info.Proc.P_stat == zombie { // EIO: the answer is empty
		err = fs.ErrNotExist
	}
	if err != nil {
		return Identity{}, fmt.Errorf("process %d: %w", pid, err)
	}
	boot, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return Identity{}, fmt.Errorf("kern.bootsessionuuid: %w", err)
	}
	start := info.Proc.P_starttime
	return Identity{PID: pid, Start: fmt.Sprintf("%d.%06d", start.Sec, start.Usec), Boot: boot}, nil
}

func (i Identity) killProcess(ctx context.Context) error { return i.killByPID(ctx) }
