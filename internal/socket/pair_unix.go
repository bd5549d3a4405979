//go:build unix

package socket

import "syscall"

// makePairLocked makes a pair of sockets on a system that cannot make them close-on-exec at
// once. It holds the fork lock until they are, so that no process inherits them by
// accident.
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
