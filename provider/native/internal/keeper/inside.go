//go:build linux

package keeper

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// actInside calls f as the user that is root inside, as far as that concerns files: those that f makes belong to that user. f has all
// rights over the files of others, as root inside has over those of the sandbox.
func (i *ids) actInside(f func() error) (err error) {
	if !i.mapped {
		return f()
	}
	runtime.LockOSThread() // each thread has users of its own for files
	defer runtime.UnlockOSThread()
	const retainRights = 1 << 2 // SECBIT_NO_SETUID_FIXUP
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, retainRights, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	if err := setFileIDs(i.root); err != nil {
		return err
	}
	defer func() {
		restored := setFileIDs(0)
		if restored == nil {
			restored = unix.Prctl(unix.PR_SET_SECUREBITS, 0, 0, 0, 0)
		}
		if restored != nil {
			panic(restored) // the thread must not go on as another user
		}
	}()
	return f()
}

// withinQuota calls f without the right to exceed quotas, and to use the blocks that file systems reserve for root.
func withinQuota(f func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var rights [2]unix.CapUserData
	if err := unix.Capget(&header, &rights[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	less := rights
	less[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
	if err := unix.Capset(&header, &less[0]); err != nil {
		return os.NewSyscallError("capset", err)
	}
	defer func() {
		if restored := unix.Capset(&header, &rights[0]); restored != nil {
			err = errors.Join(err, os.NewSyscallError("capset", restored))
		}
	}()
	return f()
}

// setFileIDs sets the user and the group of this thread for files.
func setFileIDs(id int) error {
	for _, nr := range []uintptr{unix.SYS_SETFSGID, unix.SYS_SETFSUID} {
		_, _, _ = unix.RawSyscall(nr, uintptr(id), 0, 0)
		if now, _, _ := unix.RawSyscall(nr, ^uintptr(0), 0, 0); int(now) != id {
			return fmt.Errorf("change the user of files to %d", id)
		}
	}
	return nil
}
