package socket

import "golang.org/x/sys/unix"

func makePair(kind int) ([2]int, error) {
	return unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
}
