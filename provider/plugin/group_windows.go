package plugin

import "syscall"

// ownGroup has a process be in a process group of its own, so that ^C does not reach it.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}
