//go:build unix

package keeper

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// jobFD is the descriptor of the socket on which the job comes and the reply
// goes.
const jobFD = 3

// heldFD is what keeps the image from being removed as long as it is open, if
// there is one: it stays so until this process ends.
const heldFD = 4

// Inherited are the files that a keeper is started with, from descriptor 3 on: its
// end of the job socket, what it is to hold, which may be nil, and the null device.
func Inherited(job, held, null *os.File) []*os.File {
	return inherited([]*os.File{jobFD - 3: job, heldFD - 3: held}, null)
}

// adopt takes what this process was started with, and returns the job socket.
func adopt() (*os.File, error) {
	unix.Umask(0o022) // what is shown inside has the modes that it is made with, whoever started us
	if err := closeInherited(); err != nil {
		return nil, err
	}
	for _, fd := range given {
		unix.CloseOnExec(fd)
	}
	if err := unix.SetNonblock(jobFD, true); err != nil { // so that closing it ends whoever reads
		return nil, err
	}
	return os.NewFile(jobFD, "job"), nil
}

// closeInherited closes what this process was given by accident: descriptors
// that whoever started Atoll had left open, locks and secrets among them, and
// that would otherwise stay so as long as the sandbox lives. Those of the Go
// runtime are closed on exec, so they are not inherited ones.
func closeInherited() error {
	entries, err := os.ReadDir(descriptors)
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < jobFD || slices.Contains(given, fd) {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	return nil
}

// HungUp reports whether the other end of the socket, whose turn it is not to say
// anything, is not just silent: most likely it has died.
func HungUp(conn syscall.Conn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true // closed
	}
	silent := false
	err = raw.Control(func(fd uintptr) {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		silent = errors.Is(err, unix.EAGAIN)
	})
	return err != nil || !silent
}
