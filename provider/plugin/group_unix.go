//go:build unix

package plugin

import "syscall"

// ownGroup has a process be in a process group of its own, so that signals of the terminal
// do not reach it.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
