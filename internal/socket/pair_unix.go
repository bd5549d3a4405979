//go:build unix

package socket

import "syscall"

// makePairLocked is a pair of sockets that no process inherits by accident, where
// the system cannot make such: nothing is forked until they are.
func makePairLocked(kind int) ([2]int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, kind, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	return fds, err
}
