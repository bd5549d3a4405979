//go:build unix

package socket

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// Files returns the two non-blocking ends of a pair of sockets, as files. kind is
// syscall.SOCK_STREAM or SOCK_DGRAM. The caller closes both.
func Files(kind int) (ours, theirs *os.File, err error) {
	fds, err := makePair(kind)
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(syscall.SetNonblock(fds[0], true), syscall.SetNonblock(fds[1], true)); err != nil {
		return nil, nil, errors.Join(err, syscall.Close(fds[0]), syscall.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs"), nil
}

// Pair returns the two ends of a stream: one for this process, one that another process
// inherits or is given. The caller closes both.
func Pair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := makePair(syscall.SOCK_STREAM)
	if err != nil {
		return nil, nil, err
	}
	near, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer near.Close()
	conn, err := net.FileConn(near) // duplicates
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil
}
