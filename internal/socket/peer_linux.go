package socket

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// Peer is the PID of the process at the other end when that was connected, or
// began to listen; 0 for one that no PID namespace of this process's shows.
func Peer(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}
