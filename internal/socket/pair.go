//go:build unix

package socket

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// Files returns two ends of a kind of socket, syscall.SOCK_STREAM or SOCK_DGRAM, neither of
// which blocks: what Pair does for who speaks to them as files. The caller closes both.
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

// Pair returns two ends of a stream: one for us, one for another process to
// inherit or to be given. The caller closes both.
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
