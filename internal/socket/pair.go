//go:build unix

package socket

import (
	"net"
	"os"
)

// Pair returns two ends of a stream: one for us, one for another process to
// inherit or to be given. The caller closes both.
func Pair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := pair()
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
